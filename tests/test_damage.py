"""Damage in DVC's cache and in outputs is always reported: after a power cut, a disk fault or an edit by mistake."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.base import files
from pipeline.versioning import cache_repair, dvc_lock, integrity
from tests.conftest import set_params
from tests.helpers import starts
from tests.helpers.damage import Damage, cut, flip, overwrite
from tests.helpers.in_process import enter_copy, run
from tests.helpers.projects import call, object_of
from tests.helpers.refusals import refuses


@pytest.fixture
def project(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the project that a test may damage: the current folder."""
    yield enter_copy(finished, tmp_path, monkeypatch)
    shutil.rmtree(tmp_path / "project")


def repro(folder: Path, *stages: str) -> subprocess.CompletedProcess[str]:
    return call(folder, sys.executable, "-m", "pipeline", "repro", "--verbose", *stages)


def outs(folder: Path) -> dict[str, str]:
    return dvc_lock.outputs(dvc_lock.read(folder / "dvc.lock"))


def everything(folder: Path) -> dict[str, bytes]:
    """The bytes of dvc.lock, of every output's files, and of DVC's cache, by path."""
    tops = [folder / "dvc.lock", *(folder / path for path in outs(folder)), folder / ".dvc/cache/files"]
    paths = [file for top in tops for file in (sorted(top.rglob("*")) if top.is_dir() else [top])]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


def an_image(folder: Path) -> str:
    """The first image, by its path in data/images."""
    return min(path.relative_to(folder / "data/images").as_posix() for path in folder.glob("data/images/*/*.png"))


def test_what_a_run_that_did_not_end_well_wrote_is_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is newer than the last sync. So is everything after the clock went back, and in a cache without a sync.

    The file systems of cache and project are synced before anything is remembered.
    """
    cache = here / "cache"
    paths = [integrity.object_of(cache, f"{number}{31 * '0'}") for number in range(2)]

    def damaged(path: Path) -> bool:
        files.write_text(path, "cut")
        return bool(cache_repair.repair(cache, ()))

    assert damaged(paths[0])
    files.write_text(paths[1], "cut")
    time.sleep(0.1)  # what was written in the same tick of the disk's clock is read again
    cache_repair.settle(cache)
    assert cache_repair.repair(cache, ()) == []
    order, before = list[str](), cache_repair.SYNCED.read_text()
    monkeypatch.setattr("pipeline.base.linux.sync", lambda _: order.append(cache_repair.SYNCED.read_text()))
    monkeypatch.setattr(integrity, "save_memory", lambda _: order.append("remember"))
    assert damaged(paths[0])
    assert order == [before, before, "remember"]
    assert int(cache_repair.SYNCED.read_text()) > int(before)
    assert paths[1].exists()
    cache_repair.SYNCED.write_text(str(2**63))
    assert cache_repair.repair(cache, ()) != []
    assert not paths[1].exists()


def test_damaged_objects_are_put_back_from_whole_outputs(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Flipped, cut or empty: each is named, and no stage runs. The next start names none, and reads no other
    object than that of an output which was damaged before it, and has kept its time: this output comes back.
    """
    read: list[str] = []
    md5 = integrity._md5
    monkeypatch.setattr(integrity, "_md5", lambda path: read.append(path) or md5(path))  # type: ignore[func-returns-value]
    before = everything(project)
    kinds = [("data/images", ""), ("data/images", an_image(project)), ("data/packed", "images-00000.bin"),
             ("models/model.safetensors", ""), ("metrics/eval.json", "")]  # fmt: skip
    objects = [object_of(project, *kind) for kind in kinds]
    damages: list[Damage] = [flip, cut, flip, cut, overwrite]  # else mypy joins their types in an order of chance
    for path, damage in zip(objects, damages, strict=True):
        damage(path)
    status, stdout, stderr = run(capfd, "--verbose")
    assert {path for path in before if path.startswith(".dvc/cache")} <= {*read}  # a copy is new to the disk
    assert all(str(path.relative_to(project)) in "".join(stderr) for path in objects)
    assert (status, [line for line in stdout if line.startswith("Running stage")]) == (0, [])
    assert everything(project) == before
    assert all(path.stat().st_mode & 0o777 == 0o444 for path in objects)
    read.clear()
    flip(project / "metrics/history.csv")
    status, stdout, stderr = run(capfd, "--verbose")
    assert "metrics/history.csv" in "".join(stderr)
    assert everything(project) == before
    assert (status, len(stderr), [line for line in stdout if line.startswith("Running stage")]) == (0, 1, [])
    assert [line for line in stdout if line.startswith("test accuracy ")]
    in_use = object_of(project, "metrics/history.csv").relative_to(project)  # the output comes back from it
    assert {path for path in read if path.startswith(".dvc/cache")} <= {str(in_use)}
    assert all((project / path).is_file() for path in integrity.load_memory())


@pytest.mark.nightly("two to five starts of DVC; make test repairs damaged objects of each kind in one")
def test_outputs_of_stages_that_are_not_asked_for_stay(project: Path) -> None:
    """After `dvc exp run` and `git checkout .`, models and figures are those of the experiment. `repro prepare` makes
    neither anew, so it names and touches none of them. `perennial repro` then brings them back."""
    before, model = everything(project), project / "models/model.safetensors"
    model.unlink()  # a link or a copy of DVC's cache
    model.write_bytes(b"of an experiment")
    flip(project / "data/packed/images-00000.bin")
    prepared = repro(project, "prepare")
    assert "model.safetensors" not in prepared.stderr
    assert "data/packed/images-00000.bin" in prepared.stderr
    assert "Running stage" not in prepared.stdout
    assert model.read_bytes() == b"of an experiment"
    assert "Running stage" not in repro(project).stdout
    assert everything(project) == before


@pytest.mark.nightly("two to five starts of DVC; make test repairs damaged objects of each kind in one")
def test_the_run_cache_hands_on_no_damage(project: Path) -> None:
    """Params A, B, A, and an object of A is damaged in between: it is removed, and its stage runs again."""
    text, before = (project / "params.yaml").read_bytes(), everything(project)
    damaged = object_of(project, "data/images", an_image(project))
    other = {"count": 60, "size": 48}
    set_params(project, data__synthetic=other)
    call(project, "dvc", "repro", "download")
    flip(damaged)
    (project / "params.yaml").write_bytes(text)
    again = repro(project)
    assert str(damaged.relative_to(project)) in again.stderr
    assert "Running stage 'download'" in again.stdout
    assert before.items() <= everything(project).items()


@pytest.mark.usefixtures("here")
def test_a_cut_entry_of_the_run_cache_is_removed() -> None:
    """With its folder, if no other entry is in it: `dvc repro` fails at an empty one."""
    entry = Path(".dvc/cache/runs/00/key/0")
    files.write_text(entry, "cmd: x\nouts:\n- path: y\n")
    (message,) = cache_repair.repair(Path(".dvc/cache"), ())
    assert message.startswith(f"{entry}: ")
    assert not entry.parent.exists()


def test_compiled_code_that_was_emptied_is_removed(here: Path) -> None:
    """numba would fail at an empty file in every run. Complete files stay, without a message."""
    folder = here / "pipeline/loader/__pycache__"
    for name, content in (("a.nbi", "x"), ("a.1.nbc", "x"), ("a.pyc", "")):
        files.write_text(folder / name, content)
    assert cache_repair.repair(Path(".dvc/cache"), ()) == []
    assert len(list(folder.iterdir())) == 3
    (folder / "a.nbi").write_bytes(b"")
    (message,) = cache_repair.repair(Path(".dvc/cache"), ())
    assert message.startswith("pipeline/loader/__pycache__: ")
    assert [path.name for path in folder.iterdir()] == ["a.pyc"]


def test_a_file_that_is_known_by_its_marks_is_not_read(tmp_path: Path) -> None:
    """Any write changes inode, size, mtime or ctime, even one that restores size and mtime."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    seen = integrity.hash_files([str(path)], {})
    ((md5, *marks),) = seen.values()
    assert integrity.hash_files([str(path)], {str(path): ["remembered", *marks]})[str(path)][0] == "remembered"
    while integrity.hash_files([str(path)], {})[str(path)][1:] == marks:  # the clock of a file system has coarse ticks
        flip(path)
    assert integrity.hash_files([str(path)], seen)[str(path)][0] != md5
    assert integrity.hash_files([str(tmp_path / "nothing")], seen) == {}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 1}', '{"a": [1, 2]}'])
@pytest.mark.usefixtures("here")
def test_a_damaged_memory_is_none(content: str) -> None:
    """It counts as empty, so everything is read again."""
    files.write_text(integrity.MEMORY, content)
    assert integrity.load_memory() == {}


def test_a_folder_is_hashed_as_dvc_does(project: Path) -> None:
    """Every output has the hash in dvc.lock. Files that .dvcignore matches do not count."""
    (project / "data/images/.unfinished.partial").write_bytes(b"x")
    outputs, _ = integrity.inspect_outputs(outs(project), {})
    assert len(outputs) >= 10
    assert [output.path for output in outputs if output.differs or not output.actual] == []
    assert integrity.damage(dvc_lock.read(Path("dvc.lock"))) == []
    flip(object_of(project, "models/model.json"))
    (fault,) = integrity.damage(dvc_lock.read(Path("dvc.lock")))
    assert (fault.key, fault.kind) == (str(object_of(Path(), "models/model.json")), "damaged")


def test_a_stage_under_dvc_compares_its_inputs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that a user starts by hand does not. `dvc repro` accepts them: the refusal names DVC's object."""
    flip(project / "data/kept.csv")
    assert integrity.check("prepare") == []
    monkeypatch.setenv(integrity.UNDER_DVC, "prepare")
    with refuses(("data/kept.csv", "differs")):
        integrity.check("prepare")
    damaged, shard = object_of(project, "data/packed", "images-00000.bin"), "data/packed/images-00000.bin"
    flip(damaged)
    files.remove(project / shard)
    shutil.copy(damaged, project / shard)
    monkeypatch.setenv(integrity.UNDER_DVC, "train")
    done = starts.run([sys.executable, "-m", "pipeline", "train"])
    (line,) = done.stderr.splitlines()
    assert (done.returncode, line.startswith(f"train: {shard}: ")) == (1, True)
    assert str(damaged.relative_to(project)) in line


def test_wrong_params_cost_no_output(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`perennial repro` refuses before DVC removes outputs."""
    set_params(project, split__fold=99)
    with refuses(("split.fold", "value")):
        run(capfd)
    assert (project / "data/split.csv").is_file()
