# A container engine for a machine that has none, as functions for image_test.sh. Nothing is installed but runc and
# mmdebstrap: Docker's packages are unpacked into $LAB, run from there, and go with it.
# shellcheck shell=bash

# One release newer than the lowest that is supported here (Debian 12), whose Docker has no BuildKit. Its runc is not
# taken: it needs a newer libc.
ENGINE_SUITE=trixie
ENGINE_PACKAGES=(docker.io docker-cli docker-buildx docker-compose containerd)

# The mirror that this machine fetches its own release from.
mirror() {
    # shellcheck disable=SC2016  # apt's own placeholders
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $(release)" | head -n 1
}

release() {
    sed -n 's/^VERSION_CODENAME=//p' /etc/os-release
}

# Docker's packages, of another release than the machine's: through an apt that has lists and sources of its own.
fetch_engine() {
    local apt="$LAB/apt" keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/debs" "$LAB/engine"
    echo "deb [signed-by=$keyring] $(mirror) $ENGINE_SUITE main" > "$apt/sources.list"
    local options=(
        -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$apt/lists"
        -o "Dir::Cache::Archives=$apt/archives" -o APT::Sandbox::User=root
    )
    apt-get "${options[@]}" -qq update
    (cd "$apt/debs" && apt-get "${options[@]}" -qq download "${ENGINE_PACKAGES[@]}")
    local package
    for package in "$apt"/debs/*.deb; do
        dpkg -x "$package" "$LAB/engine"
    done
    rm -r "$apt"
}

# Start dockerd on a socket in $LAB, without a network of its own (builds take the host's), and point docker at it. Its
# data, BuildKit's cache among them, lie in $BUILT where that is named.
start_engine() {
    export DOCKER_CONFIG="$LAB/config" DOCKER_HOST="unix://$LAB/docker.sock"
    export PATH="$LAB/engine/usr/bin:$LAB/engine/usr/sbin:$PATH"
    mkdir -p "$DOCKER_CONFIG"
    ln -s "$LAB/engine/usr/libexec/docker/cli-plugins" "$DOCKER_CONFIG/cli-plugins"
    dockerd --data-root "${BUILT:-$LAB}/data" --exec-root "$LAB/exec" --pidfile "$LAB/docker.pid" --host "$DOCKER_HOST" \
        --bridge=none --iptables=false --ip6tables=false > "$LAB/dockerd.log" 2>&1 &
    local tries
    for tries in {1..60}; do
        docker info > /dev/null 2>&1 && return
        sleep 1
    done
    echo "image-test: the engine did not start in $tries s; its last words:" >&2
    tail -n 20 "$LAB/dockerd.log" >&2
    return 1
}

# End the engine that start_engine started, and wait for it: its mounts go with it.
stop_engine() {
    local pid
    pid=$(cat "$LAB/docker.pid" 2> /dev/null) || return 0
    kill "$pid" 2> /dev/null || return 0
    tail --pid="$pid" -f /dev/null
}
