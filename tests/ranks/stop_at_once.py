"""`perennial rank train` that receives TERM after each step that it takes.

python -m tests.ranks.stop_at_once
"""

import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

from pipeline.learning import loop
from pipeline.loader.batches import Batch
from pipeline.stages import train

take_steps: Callable[..., Iterator[Batch]] = loop.train


def interrupt_steps(*arguments: Any) -> Iterator[Batch]:
    for batch in take_steps(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        yield batch


if __name__ == "__main__":
    loop.train = interrupt_steps  # type: ignore[assignment]
    sys.exit(train.main(Namespace()))
