"""Folders as people have them end as stated: understood, with what was done, or refused by name."""

from pathlib import Path

import pytest

from tests import layouts
from tests.layouts import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_layout_ends_as_stated(case: Case, tmp_path: Path) -> None:
    """Through the inbox and the split: the images of each split, the classes, and what the user is told."""
    ending = layouts.run(case, tmp_path)
    assert (ending.kept, ending.refused) == (case.kept, case.refused), ending.lines
    assert not any(case.kept) or ending.classes == case.classes
    text = "\n".join(ending.lines)
    for said in case.says:
        assert said in text
