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
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.config import document, params
from pipeline.studies import workcopy
from pipeline.versioning import dvc_lock, identity, integrity
from pipeline.versioning.integrity import Output
from tests.helpers.projects import edited

CACHE = Path(".dvc/cache")
OUTPUTS = {path for stage in workspace.STAGES for path in workspace.declared(stage)}
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


def files_of(path: str, md5: str) -> dvc_lock.Hashes:
    """Path → MD5 of each file of an output, which has this hash in dvc.lock: of itself, or of the list in the cache."""
    return integrity.expected_files(Output(path, md5, "", {}), CACHE)


def restore() -> None:
    """Write each output that dvc.yaml has in the cache to its place, from dvc.lock and the cache."""
    recorded = dvc_lock.outputs(dvc_lock.read())
    cached = [path for stage in dvc_lock.graph() for path, is_cached in dvc_lock.outs(stage).items() if is_cached]
    for path in cached:
        files.remove(Path(path))
        for file, stored in files_of(path, recorded[path]).items():
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(integrity.object_of(CACHE, stored), file)


def hashes(recorded: dvc_lock.Hashes) -> dvc_lock.Hashes:
    """The hash of each of these outputs as its files are now. Reads every byte. `recorded` says which are folders."""
    outputs, _ = integrity.inspect_outputs(recorded, {})
    return {output.path: output.actual for output in outputs}


def differences() -> set[tuple[str, ...]]:
    """Stage, kind and name of each command, param, input and output that is not as dvc.lock records it."""
    found, values = set[tuple[str, ...]](), dict(document.leaves(document.read(params.FILE)))
    for stage, entry in dvc_lock.entries().items():
        recorded = dvc_lock.stage_hashes({stage: entry})[stage]
        if identity.filled(dvc_lock.commands()[stage], values) != entry["cmd"]:
            found.add((stage, "command", stage))
        for table in entry.get("params", {}).values():
            found |= {(stage, "param", key) for key, value in document.leaves(table) if values.get(key) != value}
        for kind, name in (("deps", "input"), ("outs", "output")):
            own = {path: md5 for path, md5 in recorded[kind].items() if kind == "outs" or path not in OUTPUTS}
            found |= {(stage, name, path) for path, md5 in hashes(own).items() if md5 != own[path]}
    return found


def flip(path: Path) -> None:
    """Change the last byte of a file of the cache."""
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_every_output_is_read_with_its_recorded_bytes(folder: Path) -> None:
    """Outputs from the cache, metrics and inputs have the hashes in dvc.lock. Params and commands are equal, too."""
    restore()
    recorded = dvc_lock.outputs(dvc_lock.read())
    assert hashes(recorded) == recorded
    assert differences() == set()
    inside = files_of("data/packed", recorded["data/packed"])["data/packed/images-00000.bin"]
    for md5 in (recorded["models/model.onnx"], inside, recorded["data/images"]):  # the last one: a folder's list
        flip(integrity.object_of(CACHE, md5))
    for name, old, new in (
        ("metrics/eval.json", "{", "{ "), ("data/corrections.csv", "\n", "\n\n"),
        ("params.yaml", "label_smoothing: 0.1", "label_smoothing: 0.2"),
        ("dvc.yaml", "-m pipeline card", "-m  pipeline card"),
    ):  # fmt: skip
        edited(name, old, new)(folder)
    restore()
    assert differences() == {
        ("export", "output", "models/model.onnx"), ("prepare", "output", "data/packed"),
        ("download", "output", "data/images"), ("evaluate", "output", "metrics/eval.json"),
        ("split", "input", "data/corrections.csv"), ("card", "command", "card"),
        *((stage, "param", "train.label_smoothing") for stage in ("train", "card", "report")),
    }  # fmt: skip


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
    assert hashes(recorded) == recorded
