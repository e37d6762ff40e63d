"""`perennial verify --json` states what was repeated, of which commit, and on which kind of CPU."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.attest import statement
from pipeline.base import files
from pipeline.base.errors import DIFFERENT
from pipeline.checks import machine
from pipeline.command_line import parse
from pipeline.commands import verify
from pipeline.config.params import Params
from pipeline.versioning import programs
from tests.conftest import read_params, write_params
from tests.helpers.projects import commit
from tests.helpers.refusals import refuses

LOCK = "stages:\n  train:\n    outs:\n    - path: models/model.safetensors\n      md5: abc\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that is committed; the current folder."""
    monkeypatch.chdir(tmp_path)
    files.write_text(Path("models/model.safetensors"), "weights")
    files.write_text(Path("dvc.lock"), LOCK)
    files.write_text(Path(".gitignore"), "models\n")
    write_params(Path("params.yaml"), read_params())
    subprocess.run(["git", "init", "--quiet"], check=True)
    commit(Path())
    return tmp_path


def made() -> dict[str, Any]:
    """The statement of a repetition of this folder's run."""
    return statement.make(Params(), programs.last_commit(), ["every stage"])


def test_a_statement_is_one_that_other_programs_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An in-toto Statement v1 with a test result. It names dvc.lock, the model, if it is here, the commit and the kind
    of CPU, and no time and no host.
    """
    content = made()
    assert content["_type"] == "https://in-toto.io/Statement/v1"
    assert content["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert {each["name"]: each["digest"] for each in content["subject"]} == {
        name: {"sha256": hashlib.sha256(text.encode()).hexdigest()}
        for name, text in (("dvc.lock", LOCK), ("models/model.safetensors", "weights"))
    }
    assert content["predicate"]["result"] == "PASSED"
    assert content["predicate"]["passedTests"] == ["every stage"]
    (configuration,) = content["predicate"]["configuration"]
    assert configuration["digest"] == {"gitCommit": programs.last_commit()}
    assert configuration["annotations"].keys() == {"cpu", "cpu_capability", "arithmetic", "device"}
    assert configuration["annotations"]["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert made() == content
    monkeypatch.setattr(machine, "cpu_name", lambda: "another")
    assert made() != content
    (run / "models/model.safetensors").unlink()
    assert [each["name"] for each in made()["subject"]] == ["dvc.lock"]


@pytest.mark.parametrize("status", [0, DIFFERENT])
def test_stdout_has_the_statement_alone(
    run: Path, status: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is of the commit and the dvc.lock before the repetition. Only a success is stated; lines go to stderr."""
    before = programs.last_commit()

    def repeat(*_: object) -> int:
        print("verify: repeating train", flush=True)
        subprocess.run(["echo", "train: epoch 1"], check=True)  # a training prints to the stdout that it gets
        files.write_text(run / "dvc.lock", LOCK.replace("abc", "def"))
        commit(run)
        return status

    monkeypatch.setattr(verify, "verify", repeat)
    assert verify.repeat(parse("verify", ["--json"])) == status
    out, err = capfd.readouterr()
    assert (err, bool(out)) == ("verify: repeating train\ntrain: epoch 1\n", status == 0)
    if status:
        return
    content = json.loads(out)
    assert content["predicate"]["passedTests"] == ["train"]
    assert content["predicate"]["configuration"][0]["digest"]["gitCommit"] == before
    assert content["subject"][0]["digest"]["sha256"] == hashlib.sha256(LOCK.encode()).hexdigest()


@pytest.mark.usefixtures("run")
def test_without_a_run_there_is_nothing_to_state(capfd: pytest.CaptureFixture[str]) -> None:
    """The recorded demo has no dvc.lock here that a statement could name. Nothing is printed for programs."""
    subprocess.run(["git", "rm", "--quiet", "dvc.lock"], check=True)
    with refuses(("--json", "missing")):
        verify.repeat(parse("verify", ["--json"]))
    assert capfd.readouterr().out == ""
