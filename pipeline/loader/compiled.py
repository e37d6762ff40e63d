"""Loops over pixels, compiled for the CPU. The one owner of numba.

A loop is compiled when it is first called, in seconds, and kept beside its source, in __pycache__; where that cannot be
written, every process compiles anew. (numba would go on to the user's home, and without one to a folder named ~.)
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba

HERE = Path(__file__).parent
KEPT = os.access(cache if (cache := HERE / "__pycache__").exists() else HERE, os.W_OK)

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop, contract: bool = False) -> Loop:
    """The loop as machine code that runs without the interpreter's lock. Whole numbers wrap, nothing is checked.

    Every floating-point operation rounds, as written. `contract` allows a product and a sum to become one operation,
    rounded once: for loops whose numbers need no rounding.
    """
    # numba reads this when it compiles a loop. It makes `resample` 1.6 times as fast [measured].
    numba.config.SLP_VECTORIZE = 1  # type: ignore[attr-defined]  # numba adds its settings to the module at run time
    fastmath = {"contract"} if contract else False
    return cast(Loop, numba.njit(nogil=True, cache=KEPT, error_model="numpy", fastmath=fastmath)(loop))
