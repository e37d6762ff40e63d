"""Everything that needs a GPU, in one command that can be resumed: tests/gpu, then the benchmarks of its speed.

    python -m benchmarks gpu --out FOLDER --archive file:///…/flower_photos_240.tgz --wheels FOLDER
    python -m benchmarks gpu --out FOLDER --device cpu       a dry run with tiny presets, about 3 minutes

It needs no network. Photos come from an archive. Missing packages come from wheels (pip download --no-deps pooch …),
which are installed into a temporary folder. The tests need pytest, iniconfig, pluggy, packaging, pygments, hypothesis,
sortedcontainers and psutil, and the packages that the pipeline imports, such as pydantic and ruamel.yaml. After
--seconds it stops with exit status 75. Called again with the same FOLDER it continues after the last row; on another
machine of the same kind, copy the files of FOLDER first. The variable OUT may name the folder, too.

This module imports the standard library alone: other packages may be in the wheels.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARTS = ("tests", "steps", "ceiling", "time_to_accuracy", "ways", "loader")
DRY_TESTS = "accumulation and fp32"  # the tests in a dry run
STOPPED = 75  # exit status: run again to continue, as for the stages
GRACE_SECONDS = 15  # time for a part to end


def command(part: str, options: argparse.Namespace) -> list[str]:
    """The command line of a part."""
    dry = options.device == "cpu"
    if part == "tests":
        report = ["--gpu-device", options.device, "--gpu-report", str(options.out)]
        return [sys.executable, "-m", "pytest", "tests/gpu", *report, *(["-k", DRY_TESTS] if dry else [])]
    archive = ["--archive", options.archive] if options.archive and part != "steps" else []
    start = [sys.executable, "-m", "benchmarks", part, "--device", options.device, "--out", str(options.out)]
    return [*start, "--resume", *archive, *(["--tiny"] if dry else [])]


def install(wheels: Path, site: Path) -> None:
    """Install the wheels of a folder into another folder, without dependencies."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(site), *map(str, sorted(wheels.glob("*.whl")))], check=True)


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
    parser.add_argument("--wheels", type=Path, help="folder of the wheels of packages that are not installed")
    parser.add_argument("--seconds", type=float, default=570, help="stop after this time (default: %(default)s)")
    parser.add_argument("--only", default="", help="run only the parts whose names contain this")
    options = parser.parse_args()
    if options.out is None:
        parser.error("--out: no folder; name one, or set the variable OUT")
    end, failed = time.monotonic() + options.seconds - GRACE_SECONDS, []
    with tempfile.TemporaryDirectory(prefix="site-") as site:
        if options.wheels:
            install(options.wheels, Path(site))
        path = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH", "")]))
        # No plugins of this machine: their warnings would be errors here.
        env = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        for part in [part for part in PARTS if options.only in part]:
            left = end - time.monotonic()
            status = run(command(part, options), env, left) if left > 0 else None
            if status is None:
                print(f"gpu: stopped in {part} after {options.seconds:.0f} s; run again to continue", flush=True)
                return STOPPED
            if status != 0:
                failed.append(part)
                print(f"gpu: {part} ended with {status}", flush=True)
    print(f"gpu: done, {f'failed: {failed}' if failed else 'nothing failed'}: {options.out}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
