# Stand-ins for the two base images, where no registry can be reached: the machine's own Debian, and its CUDA toolkit.
# What belongs to this machine alone goes in here, so that docker/Dockerfile stays as users build it: apt's settings,
# the certificate bundle, and where to find the CUDA headers that a toolkit lacks but torch's wheels bring.
FROM scratch AS runtime
ADD rootfs.tar /
COPY apt.conf /etc/apt/apt.conf.d/99machine
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
# As Ubuntu 24.04 has it: uid 1000 is taken.
RUN useradd --uid 1000 --create-home ubuntu

FROM runtime AS devel
# hadolint ignore=DL3008  # a stand-in for one run
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*
# hadolint ignore=DL3022  # --build-context cuda=<folder>
COPY --from=cuda / /usr/local/cuda
ENV PATH=/usr/local/cuda/bin:${PATH} CUDA_HOME=/usr/local/cuda \
    CPATH=/opt/perennial/venv/lib/python3.11/site-packages/nvidia/cu13/include
