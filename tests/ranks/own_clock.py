"""`perennial rank train` in which every process but rank 0 always finds that much time has passed.

python -m tests.ranks.own_clock FOLDER
"""

import itertools
import os
import sys
import time
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

from pipeline.stages import train

if __name__ == "__main__":
    os.chdir(sys.argv.pop())
    if os.environ["RANK"] != "0":
        leaps = itertools.count(step=1_000_000)
        clock: Any = SimpleNamespace(monotonic=lambda: time.monotonic() + next(leaps))
        vars(train)["time"] = clock
    sys.exit(train.main(Namespace()))
