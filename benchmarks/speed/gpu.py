"""Everything that needs a GPU, in one command that can be resumed, the most important first.

    make gpu-packages PACKAGES=FOLDER APEX_WHEEL=FILE        the packages that such a machine lacks, for Python 3.12
    python -m benchmarks gpu --out FOLDER --packages FOLDER --archive file:///…/flower_photos_240.tgz --minutes 9
    python -m benchmarks gpu --out FOLDER --device cpu       a dry run with tiny presets, about 4 minutes

It needs no network, and a Python with torch, torchvision, numpy, numba, scipy, pytest, hypothesis, psutil, requests,
tensorboard and timm. Photos come from an archive; what the stages before training make of them is kept in
FOLDER.store, for all parts but `loader`, which measures it. After --minutes it stops with exit status 75. Called again
with the same FOLDER it continues after the last row; on another machine with the same kind of GPU, copy the files of
FOLDER first. The variable OUT may name the folder. Where the repository of the code is not, the variable
COMMIT must name the commit.

This module imports the standard library alone: other packages may be in the folder.
"""

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

# What the parts import. --write-packages writes CARRIED into a folder, and Apex from --apex-wheel.
CARRIED = ("annotated_types", "imagehash", "pydantic", "pydantic_core", "ruamel.yaml",
           "typing_inspection")  # fmt: skip
EXPECTED = ("hypothesis", "numba", "numpy", "psutil", "pytest", "requests", "scipy", "sortedcontainers", "tensorboard",
            "timm", "torch", "torchvision")  # fmt: skip
# In the order of worth: without equal bits no figure is worth taking. The options of pytest, or of a benchmark.
TESTS = {
    "collect": ["--collect-only", "-q"],
    "bits": ["-k", "bits or kernels or tf32 or waits"],
    "tests": ["-k", "not compiled"],
    "compiled_tests": ["-k", "compiled"],
}
BENCHMARKS = {
    "steps": ["steps"],
    "profile": ["profile", "--limits", "0.9", "0.8", "0.7"],
    "ceiling": ["ceiling", "--without", "compiled"],
    "time_to_accuracy": ["time_to_accuracy"],
    "ways": ["ways"],
    "peers": ["peers"],
    "compiled": ["ceiling"],
    "loader": ["loader"],
}
ON_NOISE = ("steps", "profile")  # they read no photos
PARTS = ("collect", "bits", "steps", "profile", "ceiling", "time_to_accuracy", "tests", "ways", "peers",
         "compiled_tests", "compiled", "loader")  # fmt: skip
FIRST = ("collect", "bits")  # if one of them fails, the command stops
DRY_TESTS = ["-k", "accumulation and fp32"]  # the tests in a dry run
APEX = ("amp_C", "apex_C", "syncbn")  # its extensions (docker/build_apex.py)
MOST_BYTES = 16 * 2**20  # of the folder of packages: it travels to the machine in each call
STOPPED = 75  # exit status: run again to continue, as for the stages
GRACE_SECONDS = 15  # time for a part to end


def command(part: str, options: argparse.Namespace) -> list[str]:
    """The command line of a part."""
    dry = options.device == "cpu"
    if part in TESTS:
        report = ["--gpu-device", options.device, "--gpu-report", str(options.out)]
        select = DRY_TESTS if dry and part != "collect" else TESTS[part]
        # A warning of another version of a library ends no test of the pytest process. One in a rank fails its case.
        return [sys.executable, "-m", "pytest", "-W", "default", "tests/gpu", *report, *select]
    archive = ["--archive", options.archive] if options.archive and part not in ON_NOISE else []
    store = [] if part in ON_NOISE else ["--store", f"{options.out}.store"]
    start = [sys.executable, "-m", "benchmarks", *BENCHMARKS[part], "--device", options.device]
    return [*start, "--out", str(options.out), "--resume", *archive, *store, *(["--tiny"] if dry else [])]


def missing(names: tuple[str, ...]) -> list[str]:
    """The packages that cannot be imported."""

    def is_missing(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is None
        except ModuleNotFoundError:  # its parent
            return True

    return [name for name in names if is_missing(name)]


def write_packages(folder: Path, apex_wheel: Path | None) -> str:
    """Write the locked versions of CARRIED, for the Python 3.12 of the image, and Apex into a folder, without symbols.

    Returns why that failed; empty if it did not.
    """
    lock, names = Path("requirements/lock.txt").read_text(), {re.sub("[._]", "-", name) for name in CARRIED}
    entries = {name: entry for entry in re.split(r"\n(?=\S)", lock) if (name := entry.partition("==")[0]) in names}
    if unlocked := sorted(names - entries.keys()):
        return f"not in requirements/lock.txt: {', '.join(unlocked)}; correct CARRIED"
    if shutil.which("strip") is None:
        return "strip is missing; install binutils (apt-get install binutils)"
    if apex_wheel and (fault := apex_fault(apex_wheel)):
        return f"{apex_wheel}: {fault}; build it in Python 3.12 with docker/build_apex.py"
    options = ["--quiet", "--upgrade", "--target", str(folder), "--no-deps", "--no-compile", "--only-binary=:all:"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(entries.values()))
        requirements.flush()
        choice = ["--python-version", "3.12", "--require-hashes", "--requirement", requirements.name]
        if status := subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, *choice], check=False
        ).returncode:
            return f"pip ended with {status}"
    if apex_wheel:
        with zipfile.ZipFile(apex_wheel) as wheel:
            wheel.extractall(folder)
    for library in folder.rglob("*.so"):
        subprocess.run(["strip", "--strip-unneeded", library], check=True)
    if (size := sum(path.stat().st_size for path in folder.rglob("*"))) > MOST_BYTES:
        return f"{folder} has {size / 2**20:.1f} MiB; at most {MOST_BYTES / 2**20:.0f}: build Apex for one kind of GPU"
    print(f"gpu: {folder}: {size / 2**20:.1f} MiB, {'with' if apex_wheel else 'without'} Apex")
    return ""


def apex_fault(path: Path) -> str:
    """Why a file is no wheel of Apex with its extensions for Python 3.12; empty if it is one."""
    if not zipfile.is_zipfile(path):
        return "no such wheel"
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
    missing = [name for name in APEX if not any(re.match(rf"{name}\.cpython-312\b.*\.so$", one) for one in names)]
    return f"it has no {', '.join(missing)} for Python 3.12" if missing else ""


def run(command_line: list[str], env: dict[str, str], seconds: float) -> int | None:
    """Run a part for at most `seconds`; its exit status, or None if the time was over."""
    process = subprocess.Popen(command_line, env=env, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(GRACE_SECONDS - 5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="folder of the reports (or OUT)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--archive", default="", help="file:// address of an archive of photos; else flowers are drawn")
    parser.add_argument("--packages", type=Path, help="folder of the packages that are not installed")
    parser.add_argument("--write-packages", type=Path, metavar="FOLDER", help="write that folder, and do nothing else")
    parser.add_argument("--apex-wheel", type=Path, metavar="FILE", help="write Apex there, too")
    parser.add_argument("--minutes", type=float, default=9, help="stop after this time (default: %(default)s)")
    parser.add_argument(
        "--only", choices=PARTS, nargs="+", default=PARTS, help="these parts, in this order (default: all)"
    )
    options = parser.parse_args()
    if options.write_packages:
        if reason := write_packages(options.write_packages, options.apex_wheel):
            print(f"gpu: {reason}")
        return int(bool(reason))
    if options.out is None:
        parser.error("--out: no folder; name one, or set the variable OUT")
    end, failed = time.monotonic() + 60 * options.minutes - GRACE_SECONDS, []
    if options.packages:
        options.packages = options.packages.resolve()
        sys.path.insert(0, str(options.packages))
    if lacking := missing(CARRIED):
        print(f"gpu: not installed: {', '.join(lacking)}; make gpu-packages writes them; name the folder by --packages")
        return 1
    if lacking := missing(EXPECTED):
        print(f"gpu: this Python has no {', '.join(lacking)}; install them: pip install {' '.join(lacking)}")
        return 1
    path = os.pathsep.join(filter(None, [str(options.packages or ""), os.environ.get("PYTHONPATH", "")]))
    # No plugins of this machine: their warnings would be errors here. Bytecode is kept: else each start compiles torch,
    # which is half of the time before the first step.
    env = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": ""}
    for part in options.only:
        left = end - time.monotonic()
        status = run(command(part, options), env, left) if left > 0 else None
        if status is None:
            print(f"gpu: stopped in {part} after {options.minutes:g} minutes; run again to continue", flush=True)
            return STOPPED
        if status != 0:
            failed.append(part)
            print(f"gpu: {part} ended with {status}", flush=True)
            if part in FIRST:
                rest = " ".join(other for other in PARTS if other not in FIRST)
                print(f"gpu: stopped: after this no figure is worth taking; to go on nevertheless: --only {rest}")
                return 1
    print(f"gpu: done, {f'failed: {failed}' if failed else 'nothing failed'}: {options.out}")
    return int(bool(failed))
