"""The folder of a run: a name that a person reads, a fingerprint that is compared as a whole."""

from pathlib import Path

import pytest

from pipeline.claims import comparison
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.training import provenance, runs
from tests.conftest import change, on_cpu, read_params

DIGEST, TWIN = "0123456789abcdef" * 4, "01234567" + "f" * 56  # the first eight digits are the same


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """Params of a run on the CPU, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    for variable in ("DVC_EXP_NAME", "DVC_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    return params.parse(change(on_cpu(read_params()), train__model="resnet18"))


def test_the_name_has_model_precision_parallel_and_experiment(config: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """And eight digits; a slash of timm's names becomes a hyphen."""
    assert runs.folder_of(config, DIGEST) == Path("runs/resnet18-fp32-single-01234567")
    monkeypatch.setenv("DVC_EXP_NAME", "calm-wren")
    timm = config.train.model_copy(update={"model": "timm/resnet10t"})
    config = config.model_copy(update={"train": timm})
    assert runs.folder_of(config, DIGEST) == Path("runs/timm-resnet10t-fp32-single-calm-wren-01234567")


def test_a_start_in_another_experiment_finds_the_same_run(config: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint decides, so an interrupted run goes on under the name that it began with."""
    monkeypatch.setenv("DVC_EXP_NAME", "first")
    begun = runs.folder_of(config, DIGEST)
    runs.prepare_run(begun, DIGEST)
    monkeypatch.setenv("DVC_EXP_NAME", "second")
    assert runs.folder_of(config, DIGEST) == begun


def test_a_run_with_the_same_digits_is_another_run(config: Params) -> None:
    """The whole fingerprint is compared; the name of the second run gets more digits."""
    first = runs.folder_of(config, DIGEST)
    runs.prepare_run(first, DIGEST)
    second = runs.folder_of(config, TWIN)
    assert second == Path(f"runs/resnet18-fp32-single-{TWIN[:16]}")
    runs.prepare_run(second, TWIN)
    assert (runs.folder_of(config, DIGEST), runs.folder_of(config, TWIN)) == (first, second)


def test_a_queued_experiment_keeps_its_record_in_the_project(
    config: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC runs it in a temporary copy, and names the project in DVC_ROOT. The checkpoint stays in the copy."""
    copy = tmp_path / ".dvc/tmp/exps/copy"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("DVC_EXP_NAME", "calm")
    folder = runs.folder_of(config, DIGEST)
    board = runs.board_of(folder)
    assert board == tmp_path / "runs/resnet18-fp32-single-calm-01234567"
    runs.prepare_run(folder, DIGEST)
    (folder / provenance.FILE).write_text("{}\n")
    runs.keep_provenance(folder)
    assert (board / provenance.FILE).read_text() == "{}\n"
    assert (board / runs.FINGERPRINT).read_text() == f"{DIGEST}\n"
    monkeypatch.chdir(tmp_path)
    assert runs.board_of(folder) == folder


def test_a_repetition_finds_the_run_whatever_its_experiment_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`verify` shows the provenance of a training beside that of its repetition, by the fingerprint in their names."""
    for name, host in (("here/resnet18-fp32-single-calm-01234567", "a"), ("there/resnet18-fp32-single-01234567", "b")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / provenance.FILE).write_text(f'{{"host": "{host}"}}')
    comparison.print_provenance(tmp_path / "here", tmp_path / "there")
    assert capsys.readouterr().out.splitlines()[-1].split() == ["host", "a", "b"]
