#!/usr/bin/env bash
# Say what `make image` or `make image-repro` lacks on this machine: a line for each thing, with its remedy. Exit status 1
# if anything is missing.
#
#     docker/needed.sh build      Docker's daemon, buildx, and, for the first build of PERENNIAL_IMAGE, NEEDED_GB of disk (30)
#     docker/needed.sh run        the daemon, compose, the image PERENNIAL_IMAGE, NVIDIA's driver and container toolkit
#
# A daemon on another machine has its own disk, driver and toolkit, which this program does not see.
set -euo pipefail

readonly WHAT=$1 IMAGE=${PERENNIAL_IMAGE:-perennial} GB=${NEEDED_GB:-30} COMPOSE=2.20
STATUS=0

lacks() {
    echo "image: $1; $2" >&2
    STATUS=1
}

# Whether a version is at least another one.
at_least() {
    [[ $(printf '%s\n' "$1" "$2" | sort --version-sort | head -n 1) == "$2" ]]
}

daemon() {
    local error
    if ! command -v docker > /dev/null; then
        lacks "docker is not installed" "install Docker 23 or later (https://docs.docker.com/engine/install)"
    elif ! error=$(docker info 2>&1 > /dev/null); then
        lacks "no Docker daemon answers (${error##*$'\n'})" \
            "start it (sudo systemctl start docker); if permission is denied: sudo usermod -aG docker $(id -un), and log in again"
    fi
}

here() {
    [[ ${DOCKER_HOST:-unix://} == unix://* ]]
}

# Not for a further build: it reuses layers, and nobody knows how many.
disk() {
    local folder free name=${IMAGE##*/} # a registry may have a port
    [[ -z $(docker image ls --quiet "${IMAGE%"$name"}${name%:*}") ]] || return 0
    folder=$(docker info --format '{{.DockerRootDir}}')
    if here && [[ -d $folder ]]; then
        free=$(df --output=avail --block-size=1G "$folder" | tail -n 1 | tr -dc 0-9)
        ((free >= GB)) || lacks "$folder has $free GB free, and the build may take $GB GB" \
            "make room (docker system prune), or build all the same: make image NEEDED_GB=$free"
    fi
}

compose() {
    local version
    if ! version=$(docker compose version --short 2> /dev/null); then
        lacks "docker compose is not installed" "install it (https://docs.docker.com/compose/install), or use docker run (docs/container.md)"
    elif ! at_least "${version#v}" "$COMPOSE"; then
        lacks "docker compose is $version" "install $COMPOSE or later (https://docs.docker.com/compose/install)"
    fi
}

gpus() {
    local instead="without a GPU: docker compose --file docker/compose.yaml run --rm repro-cpu (docs/container.md)"
    here || return 0
    command -v nvidia-smi > /dev/null ||
        lacks "no NVIDIA driver is here (nvidia-smi)" "install 580 or later; $instead"
    command -v nvidia-ctk > /dev/null || command -v nvidia-container-runtime-hook > /dev/null ||
        lacks "the NVIDIA Container Toolkit is not installed (nvidia-ctk)" \
            "install it (https://docs.nvidia.com/datacenter/cloud-native/container-toolkit), then restart Docker; $instead"
}

image() {
    # One with a registry or a digest in its name is fetched.
    [[ $IMAGE == *[/@]* ]] || docker image inspect "$IMAGE" > /dev/null 2>&1 ||
        lacks "Docker has no image $IMAGE" "make image"
}

daemon
if ((STATUS == 0)); then
    case $WHAT in
        build)
            docker buildx version > /dev/null 2>&1 ||
                lacks "docker buildx is not installed" "install the package docker-buildx-plugin (Docker's own), or docker-buildx"
            disk
            ;;
        run)
            compose
            gpus
            image
            ;;
    esac
fi
exit "$STATUS"
