"""Compares refusals by their keys and kinds, never by their words; and checks their form."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeline.base.errors import Fault, Kind, UserError
from pipeline.base.text import visible

LONGEST = 500  # characters of a refusal, without the folder of a test, and without a long name of one letter
FOLDERS = tempfile.gettempdir(), os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # see conftest.py
LENGTHY = re.compile(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/[^\s;:]*|(.)\1{{30,}}")


def check_form(fault: Fault) -> None:
    """Fails if a refusal is not one short line: the key, the value, then what is allowed or the remedy."""
    text = str(fault)
    assert text.startswith(visible(f"{fault.key}: {fault.value}"))
    assert text.endswith(tuple(visible(part) for part in (fault.allowed, fault.remedy) if part))
    assert text.isprintable()
    assert len(LENGTHY.sub("", text)) < LONGEST, text
    assert not re.search(r"  |: [:;] |;;|allowed: .*allowed:|[.:;,]$", text), text


@contextmanager
def refuses(*faults: tuple[object, Kind]) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """A block that has to raise UserError with exactly these faults: key and kind of each, in order.

    Each of them is rendered, and has the form of a refusal.
    """
    with pytest.raises(UserError) as error:
        yield error
    actual = [(fault.key, fault.kind) for fault in error.value.faults]
    assert actual == [(str(key), kind) for key, kind in faults], f"{actual}: {error.value}"
    for fault in error.value.faults:
        check_form(fault)
    del error  # the error has this frame: a cycle would keep what the failed work has opened
