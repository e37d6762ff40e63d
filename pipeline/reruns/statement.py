"""Signed statements of who has repeated a run: one line of metrics/claims.jsonl each.

A line is a DSSE envelope [secure-systems-lab/dsse, protocol 1.0.2] of an in-toto Statement v1 with the predicate
test-result v0.1 [in-toto/attestation]. Its subjects are dvc.lock and the model, if it is here. It names the commit,
what was repeated, and the kind of CPU, and no time. So two repetitions of the same on one kind of machine have the same
line, and Ed25519 signs them alike. Other programs check it, too: `cosign verify-blob-attestation --key`.
"""

import base64
import binascii
import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field

from pipeline.base import files, schema
from pipeline.base.errors import Fault, UserError, raise_if_any
from pipeline.config import machine
from pipeline.config.params import Params
from pipeline.versioning import dvc_lock

FILE = Path("metrics/claims.jsonl")
Key = Ed25519PrivateKey  # this module alone imports cryptography
PAYLOAD = "application/vnd.in-toto+json"
STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "https://in-toto.io/attestation/test-result/v0.1"
ALLOWED_KEY = "a file of PEM with an Ed25519 key: openssl genpkey -algorithm ed25519 -out key.pem; its public half: "
ALLOWED_KEY += "openssl pkey -in key.pem -pubout -out key.pub"


@dataclass(frozen=True)
class Signature:
    keyid: str  # SHA-256 of the public key's 32 bytes
    sig: str  # Base64


@dataclass(frozen=True)
class Envelope:
    """A signed payload. Other keys of an envelope are refused."""

    __pydantic_config__ = schema.STRICT

    payload: str  # Base64
    payloadType: str
    signatures: Annotated[list[Signature], Field(min_length=1)]


def make(config: Params, commit: str, tests: list[str], passed: bool) -> dict[str, Any]:
    """The statement that `tests` were repeated here, from the outputs of `commit`, with these params."""
    import torch  # takes seconds, and only a signature needs it

    paths = (dvc_lock.LOCK, Path(config.paths.models) / "model.safetensors")
    kind = {
        "cpu": machine.cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "arithmetic": config.train.arithmetic,
        "device": config.train.device,
    }
    return {
        "_type": STATEMENT,
        "subject": [{"name": str(path), "digest": {"sha256": files.sha256(path)}} for path in paths if path.is_file()],
        "predicateType": PREDICATE,
        "predicate": {
            "result": "PASSED" if passed else "FAILED",
            "configuration": [{"name": "commit", "digest": {"gitCommit": commit}, "annotations": kind}],
            "passedTests" if passed else "failedTests": tests,
        },
    }


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """The private key in a file of PEM. Raises UserError for a missing file, and for one that is no such key."""
    with _reading_key(path):
        private = serialization.load_pem_private_key(path.read_bytes(), None)
        if not isinstance(private, Ed25519PrivateKey):
            raise ValueError("a key of another kind")
    return private


def sign(statement: Mapping[str, Any], private: Ed25519PrivateKey) -> str:
    """The line of a statement, signed with a private key."""
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    signature = Signature(_key_id(private.public_key()), base64.b64encode(private.sign(_pae(payload))).decode())
    envelope = Envelope(base64.b64encode(payload).decode(), PAYLOAD, [signature])
    return json.dumps(asdict(envelope), sort_keys=True)


def add(line: str, path: Path = FILE) -> None:
    """Add a line to a file, if it is not there."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if line not in lines:
        files.write_text(path, "".join(f"{each}\n" for each in [*lines, line]))


def check(path: Path, key: Path) -> list[str]:
    """A sentence for each statement in a file; each has the public key's signature, and is of this folder's run.

    Raises UserError for another signature, another dvc.lock or model, a commit with another dvc.lock, and a repetition
    that failed.
    """
    with _reading_key(key):
        public = serialization.load_pem_public_key(key.read_bytes())
        if not isinstance(public, Ed25519PublicKey):
            raise ValueError("a key of another kind")
    sentences: list[str] = []
    faults: list[Fault] = []
    with schema.reading(path, f"git checkout {path}"):
        lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            statement = _open(schema.of_json(line, Envelope), public)
            sentences.append(_sentence(where, statement))
            faults += _faults(where, statement)
        except InvalidSignature:
            faults.append(Fault(where, "the signature", "differs", f"it is not one of {key}", remedy="another --key"))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, binascii.Error) as error:
            faults += schema.damage(where, error, f"git checkout {path}").faults
    if not lines:
        faults.append(Fault(str(path), "no statement", "missing", remedy="perennial verify --sign key.pem"))
    raise_if_any(faults)
    return sentences


def _open(envelope: Envelope, public: Ed25519PublicKey) -> dict[str, Any]:
    """The statement in an envelope. Raises InvalidSignature without a signature of the key, ValueError for a type."""
    payload = base64.b64decode(envelope.payload, validate=True)
    signature = next((each.sig for each in envelope.signatures if each.keyid == _key_id(public)), "")
    public.verify(base64.b64decode(signature, validate=True), _pae(payload))
    statement = json.loads(payload)
    if (envelope.payloadType, statement["_type"], statement["predicateType"]) != (PAYLOAD, STATEMENT, PREDICATE):
        raise ValueError(f"not a statement with the predicate {PREDICATE}")
    return dict(statement)


def _faults(where: str, statement: Mapping[str, Any]) -> list[Fault]:
    """What of a statement is not true of this folder."""
    faults, remedy = [], "check out the commit that it is of; or repeat this one: perennial verify --sign key.pem"
    digests = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    for name, digest in digests.items():
        if not Path(name).is_file() or files.sha256(Path(name)) != digest:
            reason = "the file here is another one"
            faults.append(Fault(where, f"its subject {name!r:.200}", "differs", reason, remedy=remedy))
    commit = statement["predicate"]["configuration"][0]["digest"]["gitCommit"]
    if hashlib.sha256(_lock_of(commit)).hexdigest() != digests[str(dvc_lock.LOCK)]:
        faults.append(Fault(where, f"its commit {commit!r:.50}", "differs", "it has another dvc.lock", remedy=remedy))
    if statement["predicate"]["result"] != "PASSED":
        faults.append(Fault(where, "its result", "differs", "the repetition gave other bytes", remedy=remedy))
    return faults


def _sentence(where: str, statement: Mapping[str, Any]) -> str:
    """What a statement says."""
    predicate = statement["predicate"]
    (commit,), tests = predicate["configuration"], predicate.get("passedTests", [])
    kind = ", ".join(f"{name} {value}" for name, value in sorted(commit["annotations"].items()))
    return f"{where}: {predicate['result']}: {'; '.join(tests)}; of commit {commit['digest']['gitCommit'][:12]}; {kind}"


@contextmanager
def _reading_key(path: Path) -> Iterator[None]:
    """A block that reads a key. Raises UserError for a missing file, and for one that is no such key."""
    try:
        yield
    except (ValueError, TypeError, UnsupportedAlgorithm, OSError) as error:
        value = "no such key" if path.is_file() else "not found"
        raise UserError(Fault(str(path), value, "value", str(error)[:100], ALLOWED_KEY)) from None


def _key_id(public: Ed25519PublicKey) -> str:
    return hashlib.sha256(public.public_bytes_raw()).hexdigest()


def _lock_of(commit: str) -> bytes:
    """The dvc.lock of a commit; empty if this repository does not have it."""
    command = ["git", "cat-file", "blob", f"{commit}:./{dvc_lock.LOCK}"]
    is_hash = len(commit) in (40, 64) and set(commit) <= set("0123456789abcdef")
    return subprocess.run(command, capture_output=True, check=False).stdout if is_hash else b""


def _pae(payload: bytes) -> bytes:
    """What is signed: the pre-authentication encoding of DSSE."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)
