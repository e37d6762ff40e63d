"""Compares the outputs of a rerun with those in dvc.lock, and prints both."""

from collections.abc import Iterable
from contextlib import chdir
from pathlib import Path

from pipeline.versioning import dvc_lock, integrity
from pipeline.versioning.dvc_lock import Hashes, StageHashes


def compare(stage_hashes: StageHashes, hashes: Hashes, stages: Iterable[str]) -> list[str]:
    """Print the hash of each output of these stages in dvc.lock and in the rerun. Returns the paths that differ."""
    expected = dvc_lock.outputs(stage_hashes, stages)
    width = max(map(len, expected))
    print(f"\n{'output':{width}}  {'dvc.lock':36}  {'rerun':36}")
    for path, md5 in expected.items():
        actual = hashes.get(path, "none")
        print(f"{path:{width}}  {md5:36}  {actual:36}  {'same' if md5 == actual else 'differs'}")
    return [path for path, md5 in expected.items() if md5 != hashes.get(path)]


def read_hashes(expected: Hashes, folder: Path) -> Hashes:
    """The hash of each of these outputs in a folder, which are read; a missing one has none.

    What a stage has run may have written into the dvc.lock of the folder.
    """
    with chdir(folder):
        outputs, _ = integrity.inspect_outputs(expected, {})
    return {output.path: output.actual for output in outputs if output.actual}
