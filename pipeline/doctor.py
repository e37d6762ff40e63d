"""What this machine has, and what the current params would be refused for.

    python -m pipeline.doctor        exit status 1 if the params cannot run here

Every stage asks the same question first (validity.py); this page is for reading.
"""

import os
import platform
import shutil
import sys
from pathlib import Path

from pipeline import machine, params, validity
from pipeline.errors import Refusal


def main() -> int:
    import torch

    here = machine.read()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    for fact, value in (
        ("Python", platform.python_version()),
        ("torch", f"{torch.__version__} (CUDA {torch.version.cuda or 'none'})"),
        ("CPU", f"{len(os.sched_getaffinity(0))} cores, {torch.backends.cpu.get_cpu_capability()}"),
        ("memory", f"{memory:.0f} GiB"),
        ("GPUs", ", ".join(names) or "none visible"),
        ("Apex", here.apex),
        ("free disk", f"{shutil.disk_usage(Path.cwd()).free / 1e9:,.0f} GB"),
        ("DVC", shutil.which("dvc") or "not on the PATH; activate the environment: . .venv/bin/activate"),
    ):
        print(f"{fact:<10} {value}")
    if names and here.cuda_devices != len(names):
        print(f"doctor: the driver sees {here.cuda_devices} GPUs, torch {len(names)}", file=sys.stderr)
        return 1
    try:
        config = params.load()
    except Refusal as refusal:
        print(f"\nparams.yaml is refused:\n{refusal}")
        return 1
    found = validity.faults(config, here)
    print("\nparams.yaml is refused here:" if found else "\nparams.yaml can run here.", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
