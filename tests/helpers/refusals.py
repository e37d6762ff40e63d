"""Compares refusals by their keys and kinds, never by their words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeline.base.errors import Kind, UserError


@contextmanager
def refuses(*expected: tuple[object, Kind]) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """A block that has to raise UserError with exactly these faults: key and kind of each, in order."""
    with pytest.raises(UserError) as error:
        yield error
    actual = [(fault.key, fault.kind) for fault in error.value.faults]
    assert actual == [(str(key), kind) for key, kind in expected], f"{actual}: {error.value}"
    del error  # the error has this frame: a cycle would keep what the failed work has opened
