"""What `trial.py` measures, and `estimate.py` adds up."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """The times of a training on this machine, in seconds."""

    start: float  # from the start of a process to its first step
    first_step: float  # it also compiles and allocates
    step: float  # a later one
    validation: float  # per image and process
