"""A signed statement says who repeated which run; another signature, subject or commit is refused."""

import base64
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pipeline.base import files
from pipeline.base.errors import Kind
from pipeline.config import machine
from pipeline.config.params import Params
from pipeline.reruns import statement
from pipeline.versioning import programs
from tests.helpers.projects import commit
from tests.helpers.refusals import refuses

COMMIT = "its commit"


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ed25519PrivateKey:
    """A key whose public half is in key.pub, in the folder of a run that is committed; the current folder."""
    monkeypatch.chdir(tmp_path)
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    Path("key.pub").write_bytes(public)
    files.write_text(Path("models/model.safetensors"), "weights")
    files.write_text(Path("dvc.lock"), "outputs")
    files.write_text(Path(".gitignore"), "models\n")
    subprocess.run(["git", "init", "--quiet"], check=True)
    commit(Path())
    return key


def made(passed: bool = True) -> dict[str, Any]:
    """The statement of a repetition of this folder's run."""
    return statement.make(Params(), programs.last_commit(), ["every stage"], passed)


def check() -> list[str]:
    """The sentences of the statements in the current folder."""
    return statement.check(statement.FILE, Path("key.pub"))


def test_statements_of_two_kinds_of_machines_are_checked(
    key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind has its line, once. The commit that adds them changes nothing of what they say."""
    for cpu in ("one", "one", "another"):
        monkeypatch.setattr(machine, "cpu_name", lambda cpu=cpu: cpu)
        statement.add(statement.sign(made(), key))
    commit(Path())
    first, second = check()
    assert "cpu one" in first
    assert "cpu another" in second


def test_the_envelope_is_one_that_other_programs_check(key: Ed25519PrivateKey) -> None:
    """DSSE signs the type and the payload with their lengths; the payload is a Statement v1 with a test result."""
    envelope = json.loads(statement.sign(made(), key))
    payload = base64.b64decode(envelope["payload"])
    name = envelope["payloadType"]
    signed = f"DSSEv1 {len(name)} {name} {len(payload)} ".encode() + payload
    key.public_key().verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed)
    content = json.loads(payload)
    assert content["_type"] == "https://in-toto.io/Statement/v1"
    assert content["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert [each["name"] for each in content["subject"]] == ["dvc.lock", "models/model.safetensors"]
    assert content["predicate"]["result"] == "PASSED"


def other_subject(content: dict[str, Any]) -> None:
    content["subject"][1]["digest"]["sha256"] = "0" * 64


def unknown_commit(content: dict[str, Any]) -> None:
    content["predicate"]["configuration"][0]["digest"]["gitCommit"] = "0" * 40


def no_hash(content: dict[str, Any]) -> None:
    content["predicate"]["configuration"][0]["digest"]["gitCommit"] = "--help"


def failed(content: dict[str, Any]) -> None:
    content["predicate"]["result"] = "FAILED"


def no_test_result(content: dict[str, Any]) -> None:
    content["predicateType"] = "https://slsa.dev/provenance/v1"


@pytest.mark.parametrize(
    ("change", "kind"),
    [(other_subject, "differs"), (unknown_commit, "differs"), (no_hash, "differs"), (failed, "differs"),
     (no_test_result, "damaged")],
)  # fmt: skip
def test_what_is_not_of_this_run_is_refused(
    key: Ed25519PrivateKey, change: Callable[[dict[str, Any]], None], kind: Kind
) -> None:
    """Although its signature is right."""
    content = made()
    change(content)
    statement.add(statement.sign(content, key))
    with refuses((f"{statement.FILE}, line 1", kind)):
        check()


@pytest.mark.parametrize("of", ["the commit before", "another key", "another payload", "no signature", "half a line"])
def test_what_was_not_signed_is_refused(key: Ed25519PrivateKey, of: str) -> None:
    """A line of another run, of another key, with other content, and what is no envelope."""
    line = statement.sign(made(), key)
    envelope = json.loads(line)
    kind: Kind = "differs"
    if of == "the commit before":
        files.write_text(Path("dvc.lock"), "other outputs")
        commit(Path())
    elif of == "another key":
        line = statement.sign(made(), Ed25519PrivateKey.generate())
    elif of == "another payload":
        line = json.dumps(envelope | {"payload": base64.b64encode(json.dumps(made(False)).encode()).decode()})
    elif of == "no signature":
        line, kind = json.dumps(envelope | {"signatures": []}), "damaged"
    else:
        line, kind = line[: len(line) // 2], "damaged"
    statement.add(line)
    with refuses((f"{statement.FILE}, line 1", kind)):
        check()


def test_keys_of_another_kind_are_refused(key: Ed25519PrivateKey) -> None:
    """Before anything is repeated: a missing file, text, and the public half."""
    Path("text").write_text("text")
    for name in ("none", "text", "key.pub"):
        with refuses((name, "value")):
            statement.read_private_key(Path(name))
    with refuses(("text", "value")):
        statement.check(statement.FILE, Path("text"))
    with refuses((str(statement.FILE), "missing")):
        check()
