"""A run can be read and repeated without DVC: from the commit's files, dvc.yaml and dvc.lock among them, and the cache.

DVC's cache has a plain form. A file is stored under its MD5. A folder is a list in JSON of the MD5 and path of each of
its files, stored under the MD5 of the list. DVC makes the run once. Then neither a test nor a stage can use DVC.
"""

import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from benchmarks.harness import workspace
from pipeline.attest import comparison
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.config import document, params
from pipeline.studies import workcopy
from pipeline.versioning import dvc_lock, identity, integrity
from pipeline.versioning.integrity import Output

CACHE = Path(".dvc/cache")
PACKAGES = ("dvc", "dvc_data", "dvc_objects")


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: the files of a finished run's commit, and those of its cache. There is no DVC, and no Git."""
    folder = tmp_path / "folder"
    workcopy.copy_files(workcopy.project_files(finished), finished, folder)
    shutil.copytree(finished / CACHE / "files/md5", folder / CACHE / "files/md5")
    monkeypatch.chdir(folder)
    take_dvc_away(tmp_path, monkeypatch)
    return folder


def take_dvc_away(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end of the test, DVC can neither be imported nor started, by this process and by those that it starts.

    Packages and a program that fail come before the real ones, in `base`.
    """
    for package in PACKAGES:
        files.write_text(base / f"packages/{package}/__init__.py", f"raise ImportError('no {package}')\n")
    files.write_text(base / "programs/dvc", "#!/bin/sh\nexit 127\n")
    (base / "programs/dvc").chmod(0o755)
    environ = workspace.environment(base)
    monkeypatch.setenv("PATH", f"{base / 'programs'}:{environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{base / 'packages'}:{environ['PYTHONPATH']}".rstrip(":"))
    for name in {*PACKAGES, *(name for name in sys.modules if name.split(".")[0] in PACKAGES)}:
        monkeypatch.setitem(sys.modules, name, None)  # import says that there is no such module
    assert subprocess.run(["dvc", "--version"], check=False).returncode == 127
    with pytest.raises(UserError, match="no dvc"):  # `python -m dvc`
        integrity.cache_folder()


def restore() -> None:
    """Write each output that dvc.yaml has in the cache to its place, from dvc.lock and the cache."""
    recorded = dvc_lock.outputs(dvc_lock.read())
    cached = [path for stage in dvc_lock.graph() for path, is_cached in dvc_lock.outs(stage).items() if is_cached]
    for path in cached:
        files.remove(Path(path))
        for file, stored in integrity.expected_files(Output(path, recorded[path], "", {}), CACHE).items():
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(integrity.object_of(CACHE, stored), file)


@pytest.mark.usefixtures("folder")
def test_every_output_is_read_with_its_recorded_bytes() -> None:
    """Those of the cache are restored, those of Git are there, and all have the hashes in dvc.lock."""
    restore()
    recorded = dvc_lock.outputs(dvc_lock.read())
    assert comparison.compare(recorded, Path()) == []


@pytest.mark.nightly("a whole pipeline; make test reads its outputs from the cache, and runs the stages under DVC")
@pytest.mark.usefixtures("folder")
def test_the_commands_of_the_stages_repeat_the_run() -> None:
    """The stages run alone, in the order of what they read and write, and write every output with the recorded hash."""
    recorded = dvc_lock.outputs(dvc_lock.read())
    for path in (str(dvc_lock.LOCK), ".dvc", *recorded):
        files.remove(Path(path))
    commands, values = dvc_lock.commands(), dict(document.leaves(document.read(params.FILE)))
    for stage in TopologicalSorter(dvc_lock.graph()).static_order():
        command = ["sh", "-c", identity.filled(commands[stage], values)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{stage}: {done.stdout}\n{done.stderr}"
    assert comparison.compare(recorded, Path()) == []
