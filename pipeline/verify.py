"""Run the committed stages again, and compare every output with the committed dvc.lock: what `make verify` runs.

    python -m pipeline.verify                    every stage
    python -m pipeline.verify --stage train      one stage, from inputs that DVC's cache holds
    python -m pipeline.verify --elsewhere        for a machine on which the bytes cannot be equal: compares accuracies
    python -m pipeline.verify --record-seeds 5   writes the accuracies that --elsewhere compares with

First the folder itself is checked. Every file that decides bytes must be committed. Outputs must be as in dvc.lock: DVC
compares their times, then every byte of them and of DVC's cache is read. dvc.lock must belong to the committed code,
params and pins; otherwise it is stale. Then a temporary clone of the commit runs the stages by force. It reads inputs
from this folder's cache, takes nothing from the run cache, and writes to neither. Exit status: 0 if every output has
the claimed hash, and every stage has this project's own command; 1 if not, or if verify could not run. Another command
is named before it runs. A copy of a file, say, would have the claimed hash, and would show nothing.

Your own photos and pretrained weights are in a commit only after `dvc add`. Without it, the stages that read them are
not repeated.

--elsewhere trains the committed params with several seeds in such a clone, beginning with the committed one. If that
seed gives the claimed bytes, it ends. Otherwise a one-sided t-test compares the test accuracies with those in
metrics/seeds.json, which --record-seeds wrote. Exit status: 0 for the same bytes, and for accuracies that are the same
within what seeds do; 3 if they are lower; 1 if it could not run. Both options keep finished seeds in .dvc/tmp/seeds/,
and continue interrupted ones.
"""

import argparse
import signal
import sys
from pathlib import Path

from pipeline.base import dvc_lock
from pipeline.base.dvc_lock import Claims
from pipeline.base.errors import UserError, exit_status
from pipeline.claims import clone, comparison, folder
from pipeline.config import params
from pipeline.config.params import Params


def verify(only: str | None) -> int:
    """Run all stages, or the stage `only`, in a clone, and print the comparison; 0 if every output is equal, else 1.

    Raises UserError if this folder is not clean, or if a stage fails in the clone.
    """
    config, claims = params.load(), dvc_lock.read()
    if only is not None and only not in claims:
        raise UserError(f"--stage: {only!r} is not a stage of dvc.lock; allowed: {', '.join(claims)}")
    folder.check(config, claims)
    arguments, repeated = plan(config, claims, only)
    foreign = folder.foreign_commands(repeated)
    print(*(f"verify: {sentence}\n" for sentence in foreign), sep="", end="", flush=True)
    with clone.of_commit(config, claims, repeated) as copy:
        clone.repeat(arguments, copy)
        got = comparison.outputs(dvc_lock.read(copy.folder / dvc_lock.LOCK), repeated)
        different = comparison.compare(claims, got, repeated)
        comparison.print_tensor_differences(different, copy.folder)
        comparison.print_provenance(Path(config.paths.runs), copy.folder / config.paths.runs)
    print(f"\nverify: {'differs: ' + ', '.join(different) if different else 'every output is as dvc.lock claims'}")
    if foreign:
        print(f"verify: {len(foreign)} of {len(repeated)} stages ran a command that is not this project's: see above")
    return 1 if different or foreign else 0


def plan(config: Params, claims: Claims, only: str | None) -> tuple[list[str], list[str]]:
    """The arguments for `dvc repro`, and the stages that it then runs. Raises UserError if `only` cannot run again."""
    skipped = clone.unversioned(config)
    if only in skipped:
        raise UserError(f"{skipped[only]}: in no commit, so {only} cannot be repeated; allowed: the other stages")
    if only is not None:
        return ["--single-item", only], [only]
    if not skipped:
        return [], list(claims)
    for stage, path in skipped.items():
        print(f"verify: {path}: in no commit, so {stage} cannot be repeated; the other stages can")
    first = (["split"] if "download" in skipped else ["download"]) + ([] if "weights" in skipped else ["weights"])
    return ["--downstream", *first], [name for name in claims if name not in skipped]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.verify",
        description="Run the committed stages again, and compare every output with dvc.lock.",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--stage", metavar="NAME", help="run this stage only")
    mode.add_argument(
        "--elsewhere",
        action="store_true",
        help="train the committed params with several seeds on this machine, and compare the test accuracies with the "
        "recorded ones (exit status 3: lower than seeds explain)",
    )
    mode.add_argument(
        "--record-seeds", metavar="N", type=int, help="record the test accuracies of N seeds, for --elsewhere"
    )
    parser.add_argument("--seeds", metavar="N", type=int, help="with --elsewhere: as many seeds (default: as recorded)")
    arguments = parser.parse_args()
    if arguments.seeds is not None and not arguments.elsewhere:
        parser.error("--seeds: only with --elsewhere")
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that these also remove the clone
        signal.signal(number, signal.default_int_handler)
    if not arguments.elsewhere and arguments.record_seeds is None:
        return exit_status("verify", lambda: verify(arguments.stage), interrupted="the clone is removed")
    from pipeline.claims import elsewhere  # imports torch, which takes seconds

    def with_seeds() -> int:
        return elsewhere.judge(arguments.seeds) if arguments.elsewhere else elsewhere.record(arguments.record_seeds)

    kept = "the clone is removed; what is trained is kept: run again to go on"
    return exit_status("verify", with_seeds, interrupted=kept)


if __name__ == "__main__":
    sys.exit(main())
