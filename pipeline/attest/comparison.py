"""Compares the outputs of a rerun with those in dvc.lock, and prints both."""

from collections.abc import Iterable
from contextlib import chdir
from pathlib import Path

from pipeline.running.terminal import columns
from pipeline.versioning import dvc_lock, integrity
from pipeline.versioning.dvc_lock import Hashes, StageHashes


def compare(stage_hashes: StageHashes, hashes: Hashes, stages: Iterable[str]) -> list[str]:
    """Print the hash of each output of these stages in dvc.lock and in the rerun. Returns the paths that differ."""
    expected = dvc_lock.outputs(stage_hashes, stages)
    differing = [path for path, md5 in expected.items() if md5 != hashes.get(path)]
    rows = [
        (path, md5, hashes.get(path, "none"), "differs" if path in differing else "same")
        for path, md5 in expected.items()
    ]
    print("", *columns([("output", "dvc.lock", "rerun", ""), *rows]), sep="\n")
    return differing


def read_hashes(expected: Hashes, folder: Path) -> Hashes:
    """The hash of each of these outputs in a folder, which are read; a missing one has none.

    What a stage has run may have written into the dvc.lock of the folder.
    """
    with chdir(folder):
        outputs, _ = integrity.inspect_outputs(expected, {})
    return {output.path: output.actual for output in outputs if output.actual}
