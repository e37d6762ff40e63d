"""What this machine or container has, what would stop a run here, and what the current params would be refused for.

    python -m pipeline.doctor        exit status 1 if the params cannot run here

Every stage asks validity.py first by itself; this page is for reading, and asks what takes seconds besides (checks.py).
"""

import sys

from pipeline import checks
from pipeline.base.errors import exit_status
from pipeline.config import machine, params, validity


def examine() -> int:
    """Print what there is and what is refused; 1 if something is. Raises UserError for params that cannot be read."""
    config = params.load()
    here, faults = machine.read(), []
    for finding in checks.findings(config, here):
        print(f"{finding.fact:<10} {finding.value}", flush=True)
        faults += [f"{finding.fact}: {finding.fault}"] if finding.fault else []
    refused = validity.faults(config, here)
    if faults:
        print("\nThis would stop a run here:", *faults, sep="\n")
    print("\nparams.yaml is refused here:" if refused else "\nparams.yaml can run here.", *refused, sep="\n")
    return 1 if faults or refused else 0


def main() -> int:
    return exit_status("doctor", examine)


if __name__ == "__main__":
    sys.exit(main())
