"""What a repeated training is compared with, and how far it goes (`perennial verify`).

A file of JSON describes it, and the variable PERENNIAL_CLAIM names the file. Every other training has NO_CLAIM, with
which nothing is compared and nothing ends early.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base import files, schema
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Paths

VARIABLE = "PERENNIAL_CLAIM"


@dataclass(frozen=True)
class Claim:
    """What a repeated training is compared with. An empty text or 0: nothing."""

    __pydantic_config__ = schema.STRICT

    states: dict[int, schema.Sha256] = field(default_factory=dict)  # epoch → SHA-256 of the state at its end (chain.py)
    difference: str = ""  # the file that gets the number of the first epoch whose state differs
    start: str = ""  # the file of the state from which it begins, instead of a working checkpoint
    start_epoch: int = 0  # the epoch at whose end that state is
    last_epoch: int = 0  # after which it ends

    def is_over(self, epochs: int) -> bool:
        """Whether nothing is left to repeat after so many epochs."""
        return 0 < self.last_epoch <= epochs

    def check_start(self, epoch: int, state: str) -> None:
        """Raise UserError if the state in `start` is not the claimed one. `epoch`: the one that it says."""
        self.check(self.start_epoch, state if epoch == self.start_epoch else f"of epoch {epoch}")

    def check(self, epoch: int, state: str) -> None:
        """Raise UserError if the claim has another state at the end of this epoch. An empty `state` is not compared."""
        expected = self.states.get(epoch, "")
        if state and expected and state != expected:
            files.write_json(Path(self.difference), epoch)
            value, claimed = f"the state has the SHA-256 {state[:12]}…", f"that of the claim, {expected[:12]}…"
            raise UserError(Fault(f"the end of epoch {epoch}", value, "differs", allowed=claimed))


NO_CLAIM = Claim()


def state_file(epoch: int) -> Path:
    """The file of the state at the end of an epoch that run.keep_states keeps."""
    return Path(Paths.states) / f"epoch-{epoch:04}.pt"


def read(is_main: bool) -> Claim:
    """The claim that this process repeats; rank 0 alone compares. Raises UserError for a damaged file."""
    path = os.environ.get(VARIABLE, "")
    claim = schema.json_of(Path(path), Claim, f"unset {VARIABLE}") if path else NO_CLAIM
    return claim if is_main else Claim(last_epoch=claim.last_epoch)
