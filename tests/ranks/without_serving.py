"""`perennial rank train` of one process, in which the code that serves does nothing.

python -m tests.ranks.without_serving

No display, checkpoint, resume, copy, provenance, message, watch, comparison or exchange with other processes.
"""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from pipeline.config import params
from pipeline.dataset import packed
from pipeline.learning.state import Progress
from pipeline.running import agreement, claim, group, monitor, rendezvous, stopping
from pipeline.stages import train


def do_nothing(*_: object, **__: object) -> None: ...


INSTEAD: dict[Any, dict[str, Any]] = {
    monitor: {"open_monitor": lambda *_: nullcontext(MagicMock())},
    stopping: {"requests": lambda *_: nullcontext(lambda: 0)},
    agreement: {"compare_facts": lambda *_: nullcontext({})},
    rendezvous: {
        "connect_store": do_nothing,
    },
    group: {"process_group": lambda *_: nullcontext()},
    claim: {"read": lambda _: claim.NO_CLAIM},
    train: {
        "check_size": do_nothing,
        "check_inputs": lambda config, *_: (
            packed.load(Path(config.paths.packed), Path(config.paths.split)),
            MagicMock(),
        ),
        "resume": lambda *_: Progress(),
        "explain_torch_errors": lambda _: nullcontext(),
        "notes": lambda *_: (),
        "training_facts": lambda *_: (),
        "early_stop_note": do_nothing,
        **dict.fromkeys(("save_state", "keep_weights", "check_losses_finite", "check_exported"), do_nothing),
    },
}

if __name__ == "__main__":
    for module, names in INSTEAD.items():
        for name, instead in names.items():
            getattr(module, name)  # it is still there
            setattr(module, name, instead)
    train.run(params.load())
    sys.exit()
