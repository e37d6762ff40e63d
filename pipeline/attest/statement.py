"""The statement that a run was repeated, for `perennial verify --json`. It is not signed: cosign signs it.

It is an in-toto Statement v1 with the predicate test-result v0.1 [in-toto/attestation]. Its subjects are dvc.lock and
the model, if it is here. It names the commit, what was repeated, and the kind of CPU, and no time. So two repetitions
of the same on one kind of machine have the same statement.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.base import files
from pipeline.checks import machine
from pipeline.config.params import Params
from pipeline.versioning import dvc_lock

STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "https://in-toto.io/attestation/test-result/v0.1"


def make(config: Params, commit: str, tests: Sequence[str]) -> dict[str, Any]:
    """The statement that `tests` were repeated here with success, from the outputs of `commit`, with these params."""
    import torch  # takes seconds, and only a statement needs it

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
            "result": "PASSED",
            "configuration": [{"name": "commit", "digest": {"gitCommit": commit}, "annotations": kind}],
            "passedTests": [*tests],
        },
    }
