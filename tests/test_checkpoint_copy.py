"""run.checkpoint_copy: a run that has lost its machine goes on at another one, to the same bytes."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO

import fsspec
import fsspec.core
import pytest

from pipeline.base import files
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.dataset import packed
from pipeline.running import checkpoint_copy, runs
from pipeline.running.runs import Run
from pipeline.versioning import identity
from tests.helpers import buckets
from tests.helpers.refusals import refuses
from tests.helpers.trainings import small_world, wait_for

KEY = "run.checkpoint_copy"


def names(copies: Path) -> list[str]:
    """The names of the copies in a folder."""
    return sorted(path.name for path in copies.glob("*/*.pt"))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """The params of a training in the working folder."""
    monkeypatch.chdir(small_world(tmp_path / "run"))
    monkeypatch.setattr(checkpoint_copy, "CHECK_SECONDS", 0.01)
    return params.load()


def copying_to(config: Params, address: object) -> AbstractContextManager[None]:
    return checkpoint_copy.keep(config, config.run.model_copy(update={"checkpoint_copy": str(address)}))


def test_a_forced_start_copies_no_checkpoint_of_the_run_before(
    config: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next start would find the end of a training that was to begin anew."""
    copies, data = tmp_path / "copies", packed.load(Path(config.paths.packed), Path(config.paths.split))
    run = runs.find_run(config, identity.digest(identity.training_parts(config, data.digest)))
    files.write_text(run.checkpoint, "-" * 40)
    with copying_to(config, copies):
        pass
    assert names(copies) == ["checkpoint.pt"]
    monkeypatch.setattr(Run, "is_recorded", lambda run: True)
    with suppress(KeyboardInterrupt), copying_to(config, copies):
        time.sleep(0.1)
        raise KeyboardInterrupt
    assert names(copies) == []
    with copying_to(config, copies):
        files.write_text(run.checkpoint, "-" * 40)  # a new one
        wait_for(lambda: names(copies) == ["checkpoint.pt"], "the new checkpoint was not copied")
    assert names(copies) == ["checkpoint.pt"]


@pytest.mark.parametrize("address", ["a-file", "{here}/params.yaml/runs"])
def test_an_address_where_nothing_can_be_written_is_refused(config: Params, tmp_path: Path, address: str) -> None:
    """Before any process starts, by the name of the setting."""
    Path("a-file").touch()
    with refuses((KEY, "machine")), copying_to(config, address.format(here=Path.cwd())):
        pytest.fail("processes are started")


def test_a_finished_training_does_not_wait_for_a_place_that_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its checkpoint is removed, so nothing is missing at the place."""
    monkeypatch.setattr(checkpoint_copy, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(checkpoint_copy, "FINISH_SECONDS", 0.3)
    run = Run(tmp_path / "run", "0" * 64)
    place = checkpoint_copy.Place(str(tmp_path), run)
    shutil.rmtree(tmp_path / run.fingerprint)
    (tmp_path / run.fingerprint).touch()
    files.write_text(run.checkpoint, "-" * 40)
    place.finish()
    assert f"the newest checkpoint is not at {tmp_path}" in capfd.readouterr().err
    run.checkpoint.unlink()
    place.finish()
    assert capfd.readouterr().err == ""


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server of S3's protocol with an empty bucket, and the variables that lead to it."""
    with buckets.server() as port:
        for name, value in {**buckets.VARIABLES, "ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # a client in this process knows the server before
        yield


@pytest.mark.parametrize(("content", "age", "expected"), [
    ("new", -60, "new"), ("old", 60, "copied"), ("copied", 60, "copied"), ("copied", -60, "copied"),
])  # fmt: skip
@pytest.mark.parametrize(
    "scheme", ["", pytest.param("s3", marks=pytest.mark.nightly("with a server; make test has the folder"))]
)
def test_the_newer_of_a_copy_and_a_checkpoint_is_taken(
    tmp_path: Path, request: pytest.FixtureRequest, scheme: str, content: str, age: int, expected: str
) -> None:
    """The copy is fetched only if it is another one; a newer checkpoint becomes the copy."""
    if scheme:
        request.getfixturevalue("storage")
    address = f"s3://{buckets.BUCKET}/{tmp_path.name}" if scheme else str(tmp_path / "copies")
    run = Run(tmp_path / "run", "0" * 64)
    files.write_text(run.checkpoint, f"{'-' * 32}copied")
    checkpoint_copy.Place(address, run).finish()
    run.checkpoint.write_text(f"{'-' * 32}{content}")
    saved = run.checkpoint.stat().st_mtime - age
    os.utime(run.checkpoint, (saved, saved))
    place = checkpoint_copy.Place(address, run)
    place.restore()
    assert run.checkpoint.read_text().strip("-") == expected
    assert (run.checkpoint.stat().st_mtime == saved) == (content != "old")  # what is equal is not fetched
    place.finish()
    there, folder = fsspec.core.url_to_fs(address)
    assert [there.cat_file(path).decode().strip("-") for path in there.glob(f"{folder}/*/*.pt")] == [expected]


def test_a_storage_that_fails_in_the_middle_costs_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The failure is reported once. The copy that is made later is whole, and a run at another machine gets it."""
    for name in ("RETRY_SECONDS", "FINISH_SECONDS"):
        monkeypatch.setattr(checkpoint_copy, name, 0.1)
    address, (first, second) = tmp_path / "copies", (Run(tmp_path / name, "0" * 64) for name in ("first", "second"))
    files.write_text(first.checkpoint, "-" * 40)
    place = checkpoint_copy.Place(str(address), first)

    def half(source: BinaryIO, target: BinaryIO, _: int) -> None:
        target.write(source.read(20))
        raise OSError("the connection is cut")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", half)
        place.finish()
        place.finish()
    assert (names(address), capfd.readouterr().err.count("it is tried again")) == ([], 1)
    place.finish()
    checkpoint_copy.Place(str(address), second).restore()
    assert second.checkpoint.read_bytes() == first.checkpoint.read_bytes()
    assert f"{KEY} ({address})" in capfd.readouterr().err
