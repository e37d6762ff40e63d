"""Folders as people have them end as stated: understood, with what was done, or refused by name."""

from pathlib import Path

import pytest

from tests import layouts
from tests.layouts import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_layout_ends_as_stated(case: Case, tmp_path: Path) -> None:
    """Through the inbox and the split: the images of each split, the classes, and what the user is told."""
    ending = layouts.run(case, tmp_path)
    assert (ending.parts, ending.faults) == (case.parts, case.faults), ending.lines
    assert not any(case.parts) or ending.classes == case.classes
    text = "\n".join(ending.lines)
    for words in case.says:
        assert words in text
