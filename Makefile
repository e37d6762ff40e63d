# What sets up, tests and builds; `make` alone lists it. `perennial` runs the pipeline, and lists its own commands.
# Needed: git, make, python3 (3.11.4 or later, 3.12), about 6 GB of disk (7 GB for the tests). Linux on x86-64.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-packages test-code test-container test-ci test-nightly test-gpu gpu-packages lint format docs bench lock lock-tests clean image image-repro image-test

PYTHON ?= $(firstword $(shell command -v python3 python3.12 python3.11))
VENV := .venv
READY := $(VENV)/.ready
READY_TESTS := $(VENV)/.ready-tests
PROMPT := perennial
PERENNIAL_IMAGE ?= perennial
TARGET ?= runtime
# What a CPU can show in minutes. `devices` would measure two rows of `ways` again (single, and ddp on two processes).
# `arithmetic` is measured when the code that it measures changes; `gpu`, `steps`: on a GPU.
BENCHMARKS := loader ceiling planning ways peers time_to_accuracy pipeline prepare
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# uv is faster than pip. It is pinned like every other package, and pip, which venv brings, installs it. On a terminal it
# shows how far it is; a log gets no list of packages.
INSTALL = $(VENV)/bin/uv pip install $$(test -t 2 || echo --quiet) --python $(VENV)/bin/python --require-hashes
# The packages have 22,700 files, of which a run imports 3,800. Python compiles a file when a process imports it for the
# first time. Most of them are imported here, so that the first run does not wait, and estimates its time without that.
# A machine may forbid Python to write bytecode; then each process would compile every file again.
IMPORTED := dvc.repo.reproduce, networkx, numba, onnx, onnxruntime, timm, torch.distributed.run, torch.utils.tensorboard, torchvision
export PYTHONDONTWRITEBYTECODE :=

setup: $(READY) $(VENV)/bin/perennial  ## the environment in .venv (5.7 GB), from requirements/lock.txt, every hash checked

# The stamp is newer than the lock only after a successful installation.
# Only an environment that was made here is emptied: venv --clear goes through a link, and removes what it points to.
# Or an empty one, which uv leaves where it is refused (requirements/refusal.py).
$(READY): requirements/lock.txt
	@test ! -L $(VENV) || { \
		echo "setup: $(VENV) is a link to $$(readlink $(VENV)); its environment stays as it is; remove the link (rm $(VENV))" >&2; exit 1; }
	@test ! -e $(VENV) || test -e $(READY) || grep -qsF "'$(PROMPT)'" $(VENV)/pyvenv.cfg || \
		{ grep -qs '^uv = ' $(VENV)/pyvenv.cfg && ! compgen -G '$(VENV)/lib/*/site-packages/*.dist-info' >/dev/null; } || { \
		echo "setup: $(VENV) is there, and was not made by make setup; move it away, or remove it (rm -r $(VENV))" >&2; exit 1; }
	@command -v git >/dev/null || { echo "setup: git is missing; install it (apt-get install git)" >&2; exit 1; }
	@test -n "$(PYTHON)" || { echo "setup: python3 is missing; install Python 3.11 or 3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11, 4) <= sys.version_info < (3, 13))' || { \
		echo "setup: $(PYTHON) is $$("$(PYTHON)" --version); needed: 3.11.4 to 3.12; name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "setup: $(PYTHON) cannot make environments; install its venv module (apt-get install python3-venv)" >&2; exit 1; }
	@test "$$(uname -sm)" = "Linux x86_64" || { echo "setup: this is $$(uname -sm); needed: Linux x86_64" >&2; exit 1; }
	@free=$$(df --output=avail -BG . | tail -1 | tr -dc 0-9); test "$$free" -ge 7 || { \
		echo "setup: $$free GB free here; the environment takes about 6 GB, and uv needs room to unpack" >&2; exit 1; }
	@echo "setup: installing 5.7 GB into $(VENV), in 1 to 10 minutes; what uv has in its cache takes no space again; only on a terminal uv shows how far it is"
	@"$(PYTHON)" -m venv --clear --prompt "$(PROMPT)" $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/uv.txt
	@$(INSTALL) --requirement requirements/lock.txt
	@$(VENV)/bin/python -c "import $(IMPORTED)"
	@touch $(READY)
	@echo "setup: done; to use it: . $(VENV)/bin/activate"

$(VENV)/bin/perennial: requirements/perennial requirements/perennial.py | $(READY)
	@install -m 644 requirements/perennial.py "$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@install -m 755 requirements/perennial $(VENV)/bin/perennial

# uv reads both locks, so that it changes no package of the first.
$(READY_TESTS): requirements/test.txt $(READY) | tests
	@echo "setup: adding what tests and linters need (0.8 GB), from requirements/test.txt, in about a minute"
	@$(INSTALL) --requirement requirements/lock.txt --requirement requirements/test.txt
	@touch $(READY_TESTS)

tests:  # a project that `perennial new` made has none
	@echo "make: no tests here: they are in the repository of Perennial, where its code is changed" >&2; exit 1

demo: setup  ## the whole pipeline on drawn flowers, in .demo/ (about 3 minutes, no GPU)
	@python -m pipeline demo

# The tests keep all cores busy. There, OpenMP's threads must sleep while they wait for each other: a training step with
# two threads beside two busy programs took 0.5 to 0.6 s instead of 0.9. On idle cores sleeping costs time, so runs of
# the pipeline itself do not set it (docs/performance.md).
PYTEST := OMP_WAIT_POLICY=passive python -m pytest -n auto --dist worksteal

# Four rings of tests. A test is in the first ring, unless its mark says why not: slow("the reason"), nightly, or gpu.
# First: for new contributors, and before every commit. It leaves out slow tests, but runs another one of each kind.
test: lint  ## lint, types, every unit test, one test of each kind of real process
	@$(PYTEST) -m "not gpu and not slow"

# Second: continuous integration runs this for each change. It has every promise, each on one case or two.
# Lint keeps one core busy, tests and the container wait at times, so all run at once. The container's lines come together.
test-ci: export SHORT := yes
test-ci: export BESIDE := tests
test-ci:  ## what CI runs: make test, every promise with real processes, the container
	@$(MAKE) --no-print-directory --jobs 2 test-packages $(READY_TESTS)
	@$(MAKE) --no-print-directory --jobs 3 lint test-code test-container

test-code: $(READY_TESTS)  ## the same without lint and the container
	@$(PYTEST) -m "not gpu and not nightly"

test-container:
	@$(MAKE) --no-print-directory --output-sync=recurse image-test

# Third: further cases of the same promises, for minutes each: more models, CPUs, kills, clusters, and the whole test of
# the container. CI runs it each night. PART=3/8 is the third of eight parts, without the container.
test-nightly: test-packages lint  ## what make test-ci leaves out: further models, CPUs, kills, clusters, the whole container (PART=1/8: a part)
	@$(PYTEST) -m "nightly and not gpu" $(if $(PART),--part "$(PART)")
	@$(if $(PART),echo "left out: the container (make image-test)",docker/image_test.sh)

# In continuous integration, as root: QEMU, with which tests/test_portable.py emulates other kinds of CPU, Chromium, in
# which the tests look at pages, and Slurm. Elsewhere those tests are left out, with their reason, until these are there.
TEST_PACKAGES := qemu-user chromium fonts-liberation slurm-wlm iproute2
test-packages:
	@if [ "$${CI:-}" = true ] && [ "$$(id -u)" = 0 ] && ! { command -v qemu-x86_64 && command -v chromium && command -v slurmctld; } >/dev/null; then \
		apt-get --quiet=2 update && apt-get install --quiet=2 --yes --no-install-recommends $(TEST_PACKAGES) >/dev/null || \
		echo "test-packages: $(TEST_PACKAGES) could not be installed; the tests that need them are left out" >&2; fi

# Fourth: what only a GPU can show. Several tests run at once on many cores, without -n.
test-gpu: $(READY_TESTS)  ## what only an NVIDIA GPU, or two, can show (tests/gpu), with a report; a second start resumes
	@python -m pytest tests/gpu --gpu-report benchmarks/results

gpu-packages: $(READY)  ## the packages that a bare GPU machine lacks, at most 16 MiB: PACKAGES=<folder> APEX_WHEEL=<file>
	@python -m benchmarks gpu --write-packages "$(or $(PACKAGES),.gpu-packages)" $(if $(APEX_WHEEL),--apex-wheel "$(APEX_WHEEL)")

# A hash seed: mypy 2.4 joins types in the order of a set, so the same code had an error in one run out of three.
lint: $(READY_TESTS)  ## Python, types, Dockerfiles, shell, YAML, workflows, compose file
	@ruff check --quiet . && ruff format --check --quiet . && PYTHONHASHSEED=0 mypy
	@hadolint docker/Dockerfile docker/lab/bases.Dockerfile
	@shellcheck .ci/run requirements/perennial docker/*.sh docker/clusters/*.sh docker/lab/*.sh
	@yamllint --strict --config-file .github/yamllint.yaml .github docker *.yaml .pre-commit-config.yaml CITATION.cff
	@actionlint && zizmor --offline --quiet .github
	@check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*.yml
	@check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	@check-jsonschema --quiet --builtin-schema vendor.compose-spec docker/compose.yaml
	@check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff

format: $(READY_TESTS)  ## format the code, and fix what ruff can fix
	@ruff check --fix . && ruff format .

docs: $(READY_TESTS)  ## write the generated parts of the documents anew
	@python -m tests.documents

bench: setup  ## measure what needs no GPU, 20 minutes on 2 idle cores (photos: ARCHIVE=file:///…); python -m benchmarks lists
	@for name in $(BENCHMARKS); do \
		python -m benchmarks $$name $(if $(ARCHIVE),--archive "$(ARCHIVE)") $(if $(SHA256),--sha256 "$(SHA256)") || exit; \
	done

image:  ## the container's image, from docker/pins.env (if Apex's host cannot be reached: APEX_SRC=<folder>)
	@PERENNIAL_IMAGE="$(PERENNIAL_IMAGE)" docker/needed.sh build
	@docker build --file docker/Dockerfile --target $(TARGET) --tag $(PERENNIAL_IMAGE) \
		$$(sed -n 's/^[A-Z]/--build-arg &/p' docker/pins.env) $(if $(APEX_SRC),--build-context apex-src=$(APEX_SRC)) .

image-repro:  ## run the pipeline in the container (perennial repro), on run.processes GPUs and these files, as your user
	@PERENNIAL_IMAGE="$(PERENNIAL_IMAGE)" docker/needed.sh run
	@PERENNIAL_IMAGE="$(PERENNIAL_IMAGE)" PERENNIAL_USER="$$(id -u):$$(id -g)" docker compose --file docker/compose.yaml run --rm repro

image-test: setup $(READY_TESTS)  ## build and test the container without a GPU or a registry (30 GB of disk, about 12 minutes on 2 idle cores, SHORT=yes: 6)
	@docker/image_test.sh

COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --upgrade --no-header --no-annotate --quiet
COMPILE_TESTS := $(COMPILE) --group test --constraint requirements/lock.txt --output-file requirements/test.txt \
	$$(sed -n 's/^\([a-z0-9.-]*\)==.*/--no-emit-package \1/p' requirements/lock.txt)
LOCK_UV := sed --quiet '/^uv==/,/[^\\]$$/p' requirements/test.txt > requirements/uv.txt
lock: $(READY)  ## write requirements/lock.txt and requirements/test.txt again, from pyproject.toml
	@$(COMPILE) pyproject.toml --output-file requirements/lock.txt
	@$(COMPILE_TESTS)
	@$(LOCK_UV)

lock-tests: $(READY)  ## write requirements/test.txt alone: new linters, and no stage runs again
	@$(COMPILE_TESTS)
	@$(LOCK_UV)

clean:  ## remove .demo and the caches of tools; never data, models or runs
	@rm -rf .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
