#!/usr/bin/env bash
# Build the same Dockerfile that users build, and run the pipeline in it, on a machine without a GPU, without a container
# registry and without a container engine.
#
#     make image-test                        substitutes for the base images and for Apex
#     make image-test APEX_SRC=<folder>      Apex itself: its source at docker/pins.env's APEX_COMMIT
#     make image-test BASES=pinned APEX_SRC=upstream     what users build; needs a registry and Git host
#     make image-test SHORT=yes              one build, and one run inside: what continuous integration has time for
#     make image-test WRITE_BUDGET=yes       the CPU seconds of its steps are recorded in tests/budget.json
#     make image-test BESIDE=tests           other work runs meanwhile: the CPU seconds are not those of the steps
#
# A running engine is used; if there is none, one is started here (root on Debian 12, engine.sh). Elsewhere, and where the
# disk is too small, the test is left out, in one line; if CI is set, that is a failure. Substitute bases need a CUDA 13.0
# toolkit in CUDA_HOME; without it, BASES is pinned. Everything is in a new folder below LAB_ROOT, and is removed at the
# end, also after a failure.
# The results of the build stay in BUILT (the substitutes and BuildKit's cache, about 12 GB), so that the next run builds
# only what changed. If CI is set and no folder is named, BUILT is empty: nothing is kept and nothing is reused.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
# shellcheck source=docker/lab/engine.sh
. docker/lab/engine.sh

readonly NEEDED_GB=30 STRANGER=12345:12345 # a user whom /etc/passwd does not know
APEX_SRC=${APEX_SRC:-}
SHORT=${SHORT:-}
CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
if [[ -x $CUDA_HOME/bin/nvcc ]]; then BASES=${BASES:-stand-in}; else BASES=${BASES:-pinned}; fi
LAB_ROOT=${LAB_ROOT:-/var/tmp}
if [[ -z ${BUILT+named} ]]; then
    BUILT=
    [[ ${CI:-} ]] || BUILT=${XDG_CACHE_HOME:-$HOME/.cache}/perennial/image-test
fi
TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-9.0} # one kind of GPU is enough to see that it builds
# Tests that use the image's own libraries and system: decoding, resampling, augmentation, metrics, models against
# reference implementations, and stages as processes. The other tests are about the code, and run on the host.
TESTS=(augment images metrics network prepare random_params resample sampler storage)
SUMMARY=()

refuse() {
    echo "image-test: $*" >&2
    exit 1
}

# End without a test: exit status 0, but 1 if CI is set.
leave_out() {
    echo "image-test: THE CONTAINER WAS NOT TESTED: $*" >&2
    if [[ ${CI:-} ]]; then exit 1; fi
    exit 0
}

# CPU seconds that all processes of this machine have used, those of the engine among them.
cpu_seconds() {
    awk -v tick="$(getconf CLK_TCK)" '$1 == "cpu" { print int(($2 + $3 + $4) / tick) }' /proc/stat
}

# Run one step; print its name and how long it took.
step() {
    local title=$1 began=$SECONDS cpu
    cpu=$(cpu_seconds)
    shift
    printf '\n== %s\n' "$title"
    "$@"
    printf '%s: %d s\n' "$title" $((SECONDS - began))
    SUMMARY+=("$(($(cpu_seconds) - cpu)) $title")
}

# Remove everything: containers, images, engine, lab.
clean_up() {
    local status=$?
    trap - EXIT
    set +e
    jobs -p | xargs --no-run-if-empty kill
    if docker info > /dev/null 2>&1; then
        docker ps --all --quiet --filter label=perennial-test |
            xargs --no-run-if-empty docker rm --force --volumes > /dev/null
        docker network rm --force perennial-test_default > /dev/null
        if [[ -d $LAB/workspace ]]; then # its files are the stranger's
            as_root chown -R "$(id -u):$(id -g)" /workspace
        fi
        docker image ls --quiet perennial-test | sort --unique |
            xargs --no-run-if-empty docker image rm --force > /dev/null
    fi
    stop_engine
    rm -rf "$LAB"
    echo
    if [[ $BUILT && -d $BUILT ]]; then
        echo "image-test: $(du --summarize --human-readable "$BUILT" | cut --fields=1) stay in $BUILT for the next run"
    fi
    if ((status)); then
        echo "image-test: FAILED (exit status $status); the lab is removed" >&2
    fi
    exit "$status"
}

# An engine that runs, or a machine on which one can be started; and room for its images.
needed() {
    local folder=$LAB_ROOT free
    if docker info > /dev/null 2>&1; then
        folder=$(docker info --format '{{.DockerRootDir}}')
    elif [[ $(id -u) != 0 || $(release) != bookworm ]]; then
        leave_out "no container engine runs (docker info); start Docker, or be root on Debian 12, where one is started here"
    fi
    free=$(df --output=avail --block-size=1G "$folder" | tail -n 1 | tr -dc 0-9)
    ((free >= NEEDED_GB)) || leave_out "$folder has $free GB free; building and running the image takes $NEEDED_GB GB"
}

engine() {
    OWN_ENGINE=
    if docker info > /dev/null 2>&1; then
        echo "the engine that runs: Docker $(docker version --format '{{.Server.Version}}')"
        return
    fi
    apt-get --quiet=2 update
    apt-get install --quiet=2 --yes --no-install-recommends runc mmdebstrap > "$LAB/apt.log"
    fetch_engine
    start_engine
    OWN_ENGINE=yes
    echo "an engine of our own: Docker $(docker version --format '{{.Server.Version}}'), from Debian $ENGINE_SUITE"
}

# Sets BASE_ARGUMENTS: the build's arguments for its base images.
bases() {
    BASE_ARGUMENTS=()
    case $BASES in
        pinned) echo "the base images of docker/pins.env" ;;
        stand-in)
            echo "stand-ins: Debian $(release), the CUDA toolkit in $CUDA_HOME. NOT tested: NVIDIA's images, Ubuntu 24.04"
            [[ -x $CUDA_HOME/bin/nvcc ]] ||
                refuse "CUDA_HOME: no nvcc in $CUDA_HOME/bin; name a CUDA 13.0 toolkit, or: make image-test BASES=pinned"
            stand_ins
            BASE_ARGUMENTS=(
                --build-arg DEVEL_IMAGE=perennial-test:devel-base --build-arg RUNTIME_IMAGE=perennial-test:runtime-base
            )
            ;;
        *) refuse "BASES: '$BASES' is not allowed; allowed: stand-in, pinned" ;;
    esac
}

# Two builds of mmdebstrap never have the same bytes. So an earlier one is used; else no layer above it could be reused.
stand_ins() {
    local context target
    context=${BUILT:-$LAB}/bases-$(release)
    mkdir --parents "$context"
    if [[ -f $context/rootfs.tar ]]; then
        echo "reused: Debian $(release) of $(date --reference "$context/rootfs.tar" --iso-8601), from $BUILT"
    else
        # mmdebstrap goes by the name: without .tar it would make a folder.
        mmdebstrap --quiet --variant=apt --include=ca-certificates "$(release)" "$context/partial.tar" "$(mirror)"
        mv "$context/partial.tar" "$context/rootfs.tar"
    fi
    apt-config dump Acquire | grep -v '""' > "$context/apt.conf"
    cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$context/ca-certificates.crt"
    for target in runtime devel; do
        docker buildx build --quiet --network host --file docker/lab/bases.Dockerfile --target "$target" \
            --build-context "cuda=$(realpath "$CUDA_HOME")" --tag "perennial-test:$target-base" "$context" > /dev/null
    done
}

# Build a target of the Dockerfile, and name it. More arguments are options of the build.
build_target() {
    local target=$1 name=$2 source=(--build-context "apex-src=${APEX_SRC:-docker/lab/apex}") log="$LAB/build-$2.log"
    shift 2
    if [[ $APEX_SRC == upstream ]]; then
        source=()
    fi
    docker buildx build --network host --progress plain --file docker/Dockerfile --target "$target" "$@" \
        "${BASE_ARGUMENTS[@]}" "${source[@]}" --build-arg "$(grep ^SOURCE_DATE_EPOCH= docker/pins.env)" \
        --build-arg "TORCH_CUDA_ARCH_LIST=$TORCH_CUDA_ARCH_LIST" --tag "perennial-test:$name" . > "$log" 2>&1 || {
        tail -n 40 "$log" >&2
        return 1
    }
    echo "$name: $(grep --count ' CACHED$' "$log") steps were built before and are reused," \
        "$(grep --count --extended-regexp ' DONE [0-9.]+s$' "$log") were done now"
}

# What users build, and the same with the tools of the tests.
build() {
    local target targets=(runtime test)
    if [[ $SHORT ]]; then targets=(runtime); fi
    if [[ $APEX_SRC ]]; then
        echo "Apex: $APEX_SRC, for $TORCH_CUDA_ARCH_LIST"
    else
        echo "A STAND-IN FOR APEX is built: this says nothing about Apex itself (APEX_SRC=<folder> names its source)"
    fi
    for target in "${targets[@]}"; do
        build_target "$target" "$target"
    done
}

# Remove what a build has left, where nothing of it is used again: the disk need not hold two builds.
prune() {
    if [[ $OWN_ENGINE && -z $BUILT ]]; then docker buildx prune --all --force > /dev/null; fi
}

# The same image once more, with nothing reused: the digest has to be the same.
build_again() {
    local one two format='{{.Id}} {{json .RootFS.Layers}}'
    prune
    build_target runtime again --no-cache
    one=$(docker image inspect --format "$format" perennial-test:runtime)
    two=$(docker image inspect --format "$format" perennial-test:again)
    [[ $one == "$two" ]] || refuse "two builds differ:"$'\n'"$one"$'\n'"$two"
    docker image rm perennial-test:again > /dev/null
    prune
    echo "two builds, one digest: ${one%% *}"
}

as_root() {
    docker run --rm --label perennial-test --network none --user 0:0 --volume "$LAB/workspace:/workspace" \
        perennial-test:runtime "$@"
}

# A command in the image, confined as in the documentation, and also without a network.
inside() {
    docker run --rm --label perennial-test --network none --read-only --tmpfs /tmp --tmpfs /var/tmp --cap-drop ALL \
        --security-opt no-new-privileges --user "$STRANGER" --volume "$LAB/workspace:/workspace" "$@"
}

# A copy of the checkout, with the params of a small demo on which these lines are changed: key:value ….
checkout() {
    local folder=$LAB/$1 change
    shift
    git clone --quiet . "$folder"
    git ls-files -z --cached --others --exclude-standard | xargs -0 ls -d 2> /dev/null |
        tar --create --files-from - | tar --extract --directory "$folder"
    cp results/demo/params.yaml "$folder/params.yaml"
    for change in count:120 weights:imagenet head:solved temperature:fitted "$@"; do
        sed --in-place --regexp-extended "s#^( +${change%%:*}: ).*#\\1${change#*:}#" "$folder/params.yaml"
    done
}

# Two checkouts of a training that begins with pretrained weights and a solved head: `published`, and `workspace`, which
# another user owns.
workspaces() {
    local name
    for name in published workspace; do
        checkout "$name" model:timm/tf_efficientnet_lite0 freeze_norm:true lr:0.0003 epochs:3 \
            epoch_checkpoint_seconds:0
    done
}

no_build_tools() {
    # shellcheck disable=SC2016  # for the shell in the container
    inside perennial-test:runtime bash -euc '
        for tool in cc c++ gcc g++ clang as ld ar make cmake ninja meson nvcc uv pip pip3 cargo rustc; do
            if command -v "$tool"; then echo "a build tool is in the image" >&2; exit 1; fi
        done
        if dpkg-query --show --showformat "\${Package}\n" | grep -E -- "-dev$|^(gcc|g[+][+]|binutils)(-[0-9]+)?$"; then
            echo "a package for building is in the image" >&2; exit 1
        fi
        if [ -n "$(find /var/lib/apt/lists -type f ! -name lock)" ]; then echo "lists of apt are in the image" >&2; exit 1; fi
        if touch /opt/perennial/new 2> /dev/null; then echo "the image can be written to" >&2; exit 1; fi'
}

# It also loads Apex's three extensions.
doctor() {
    inside perennial-test:runtime python -m pipeline doctor | tee "$LAB/doctor.log"
    grep --quiet "^Apex .*extensions load" "$LAB/doctor.log" || refuse "Apex does not load"
}

# It fails if an output is not the committed one, which runs on the host have written.
demo_inside() {
    inside perennial-test:runtime python -m pipeline demo
}

# A run of this host, which is not interrupted, as a commit.
# While the image is built, which waits for the disk and uses one core at times.
build_beside_a_run_of_the_host() {
    local run
    run_of_the_host &
    run=$!
    build
    wait "$run"
    as_root chown -R "$STRANGER" /workspace
}

run_of_the_host() {
    (
        cd "$LAB/published"
        python -m pipeline repro > "$LAB/published.log"
        git add --all
        git -c user.name=test -c user.email=test@localhost commit --quiet --message Published
    )
}

# Inside, a clone of it repeats every stage, and compares with the dvc.lock of the host.
published_repeated() {
    # Git does not clone what another user owns, unless the caller's own settings allow it.
    inside --volume "$LAB/published/.git:/published.git:ro" perennial-test:runtime bash -euc "
        git config --global --add safe.directory '*'
        git clone --quiet /published.git /tmp/clone
        cd /tmp/clone
        python -m pipeline verify" | tee "$LAB/verified.log" | grep "^verify: "
    grep --quiet "^verify: a clone in which nothing has run" "$LAB/verified.log" || refuse "outputs were in the clone"
    grep --quiet "^verify: every output is as dvc.lock says" "$LAB/verified.log" || refuse "not every output was compared"
}

tests_inside() {
    local files=("${TESTS[@]/#/tests/test_}")
    inside perennial-test:test python -m pytest -q -m "not gpu and not slow" "${files[@]/%/.py}"
}

# docker compose with the settings of users.
composed() {
    PERENNIAL_IMAGE=perennial-test:runtime PERENNIAL_USER=$STRANGER PERENNIAL_NETWORK=none \
        docker compose --project-name perennial-test --file "$LAB/workspace/docker/compose.yaml" run \
        --label perennial-test=stop "$@"
}

# Start a run of the container in the background, and wait until a file in its workspace has this name.
begin_until() {
    composed --detach --name perennial-test-stopped repro-cpu > /dev/null
    until compgen -G "$LAB/workspace/$1" > /dev/null; do
        [[ $(docker inspect --format '{{.State.Running}}' perennial-test-stopped) == true ]] || {
            docker logs perennial-test-stopped >&2
            refuse "the run ended before $1"
        }
        sleep 0.2
    done
}

# Kill a run when a file has the first name; then the stage must not have written a file of the second name.
killed_at() {
    begin_until "$1"
    docker kill perennial-test-stopped > /dev/null
    docker rm perennial-test-stopped > /dev/null
    if compgen -G "$LAB/workspace/$2" > /dev/null; then refuse "the kill at $1 came too late"; fi
}

# A kill while it computes features, `docker stop` in the middle of training, then the same command again. dvc.lock has to
# be that of the host, which was not interrupted.
stopped_and_resumed() {
    local status began
    killed_at ".dvc/tmp/features/*" "models/*"
    begin_until "runs/*/checkpoint.pt"
    began=$SECONDS
    docker stop perennial-test-stopped > /dev/null
    status=$(docker inspect --format '{{.State.ExitCode}}' perennial-test-stopped)
    docker logs perennial-test-stopped 2>&1 | grep --text "train: stopped by .*; saved at step" || refuse "stopped, training did not save"
    docker rm perennial-test-stopped > /dev/null
    echo "stopped in $((SECONDS - began)) s, exit status $status"
    [[ $status != 0 && $status != 137 ]] || refuse "exit status $status: finished, or killed, instead of stopped"
    # As a killed DVC leaves its lock. Which process has its PID now is chance, but PID 1 always exists.
    local lock='{"write": {"/workspace/models": {"pid": 1, "cmd": "dvc repro"}}}'
    inside perennial-test:runtime sh -c "echo '$lock' > .dvc/tmp/rwlock; touch -d '1 minute ago' .dvc/tmp/rwlock"
    composed --rm repro-cpu 2>&1 | tee "$LAB/resumed.log"
    grep --quiet --text "repro: .*was left locked by a killed DVC" "$LAB/resumed.log" || refuse "no lock was left"
    cmp "$LAB"/{published,workspace}/dvc.lock || refuse "dvc.lock differs from that of the host"
    echo "dvc.lock is that of the host, byte for byte: SHA-256 $(sha256sum < "$LAB/workspace/dvc.lock")"
}

# What `perennial start quick` trains, with one, two and three processes: killed while they compute features, and again in
# the stage that solves the head. dvc.lock has to be that of one process of the host, which was not killed.
quick_killed() {
    local processes quick=(model:exact/tf_efficientnet_lite0 freeze_backbone:true parallel:elastic)
    checkout quick "${quick[@]}" processes:1
    (cd "$LAB/quick" && python -m pipeline repro > "$LAB/quick.log")
    for processes in 1 2 3; do
        as_root find /workspace -mindepth 1 -delete
        rmdir "$LAB/workspace"
        checkout workspace "${quick[@]}" "processes:$processes"
        as_root chown -R "$STRANGER" /workspace
        killed_at ".dvc/tmp/features/*" "data/features/*"
        killed_at "runs/*" "models/model.safetensors"
        composed --rm repro-cpu > "$LAB/quick-$processes.log" 2>&1
        cmp "$LAB"/{quick,workspace}/dvc.lock || refuse "dvc.lock of $processes processes differs from that of the host"
    done
    echo "killed twice with 1, 2 and 3 processes, and each time the host's dvc.lock:" \
        "SHA-256 of models/model.safetensors $(sha256sum < "$LAB/workspace/models/model.safetensors")"
}

# A person's own `dvc repro` inside: a stage that is forced runs, and dvc.lock stays as it is.
dvc_by_hand() {
    inside perennial-test:runtime python -m dvc repro --force --single-item evaluate
    cmp "$LAB"/{published,workspace}/dvc.lock || refuse "dvc.lock differs after dvc repro"
}

# A changed line of the lock: every stage refuses the image in one sentence. All of them have one code for that, so one is
# enough for continuous integration.
stale_refused() {
    local stage said stages=(download split prepare weights train evaluate export card report)
    if [[ $SHORT ]]; then stages=(train); fi
    as_root sh -c 'echo "# a changed line" >> requirements/lock.txt'
    for stage in "${stages[@]}"; do
        said=$(inside perennial-test:runtime python -m pipeline "$stage" 2>&1 > /dev/null) && refuse "$stage ran in a stale image"
        [[ $(wc -l <<< "$said") == 1 && $said == *"requirements/lock.txt"*"make image"* ]] || refuse "$stage said: $said"
    done
    echo "$said"
}

# Every new file belongs to the caller, and nobody else may write to it.
owners_and_modes() {
    local wrong
    wrong=$(as_root find /workspace '(' ! -uid "${STRANGER%:*}" -o ! -gid "${STRANGER#*:}" \
        -o ! -type l -perm /022 ')' -printf '%U:%G %M %p\n')
    [[ -z $wrong ]] || refuse "of another owner, or writable for others:"$'\n'"$(head -n 20 <<< "$wrong")"
    as_root find /workspace -newer /workspace/params.yaml -type f -printf '%U:%G %m\n' | sort | uniq --count
}

needed
LAB=$(mktemp --directory "$LAB_ROOT/perennial-lab.XXXXXX")
trap clean_up EXIT
trap 'exit 130' INT TERM
if [[ $BUILT ]]; then
    mkdir --parents "$BUILT"
    exec {BUSY}> "$BUILT/lock"
    flock --nonblock "$BUSY" || refuse "BUILT: another run uses $BUILT; wait for it, or name another folder, or none: BUILT="
fi

step "engine" engine
step "base images" bases
step "workspace of another user" workspaces
step "image, and a run of the host" build_beside_a_run_of_the_host
docker history --human --format '{{.Size}}\t{{.CreatedBy}}' perennial-test:runtime
docker image ls perennial-test
if [[ $SHORT ]]; then
    echo "left out (make test-nightly has it): a second build, with the same digest; inside, the demo, a published run," \
        "the tests, quick killed with 1, 2 and 3 processes, and the other stages' refusal of a stale image"
else
    step "the image once more" build_again
fi
step "inside: no build tool" no_build_tools
step "inside: doctor" doctor
step "inside: docker stop, and on, to the bytes of the host" stopped_and_resumed
step "inside: dvc repro by hand" dvc_by_hand
if [[ -z $SHORT ]]; then
    step "inside: demo" demo_inside
    step "inside: a published run is repeated" published_repeated
    step "inside: tests" tests_inside
fi
step "inside: a stale image is refused" stale_refused
step "owners and modes" owners_and_modes
if [[ -z $SHORT ]]; then
    step "inside: quick, killed with 1, 2 and 3 processes" quick_killed
fi
if [[ ${BESIDE:-} ]]; then
    printf '\n== image-test passed; CPU seconds were not counted, beside %s\n' "$BESIDE"
else
    printf '\n== image-test passed; CPU seconds of the whole machine:\n'
    printf '%s\n' "${SUMMARY[@]}" | python -m tests.helpers.budget "image-test${SHORT:+ SHORT=yes}" ${WRITE_BUDGET:+--write}
fi
