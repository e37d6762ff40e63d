"""Compares the outputs of a rerun with those in dvc.lock, and prints both."""

from contextlib import chdir
from pathlib import Path

from pipeline.running.terminal import columns
from pipeline.versioning import integrity
from pipeline.versioning.dvc_lock import Hashes


def compare(expected: Hashes, folder: Path) -> list[str]:
    """Print the hash of each of these outputs, and of the same one in a folder. Returns the paths that differ.

    The folder is read: what a stage has run may have written into its dvc.lock.
    """
    with chdir(folder):
        outputs, _ = integrity.inspect_outputs(expected, {})
    actual = {output.path: output.actual for output in outputs}
    differing = [path for path, md5 in expected.items() if md5 != actual.get(path)]
    rows = [
        (path, md5, actual.get(path) or "none", "differs" if path in differing else "same")
        for path, md5 in expected.items()
    ]
    print("", *columns([("output", "dvc.lock", "rerun", ""), *rows]), sep="\n")
    return differing
