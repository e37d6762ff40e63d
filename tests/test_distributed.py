"""Which backend a process group has, and how a process leaves that of a GPU.

NCCL waits where gloo does not, so the call is written down.
"""

import subprocess
from pathlib import Path

import pytest
import torch

from pipeline.config.params import Backend
from pipeline.engine.distributed import backend_for
from tests.helpers.ranks import start_ranks


@pytest.mark.parametrize(
    ("device", "choice", "expected"),
    [("cpu", "auto", "gloo"), ("cuda", "auto", "nccl"), ("cuda", "gloo", "gloo"), ("cuda", "nccl", "nccl")],
)
def test_the_backend_is_the_chosen_one_or_that_of_the_device(device: str, choice: Backend, expected: Backend) -> None:
    assert backend_for(torch.device(device), choice) == expected


def test_an_error_of_one_rank_ends_it_at_once_with_its_own_sentence(tmp_path: Path) -> None:
    """No rank destroys the group after an error: NCCL would wait there for ever, before the sentence is printed."""
    processes = start_ranks(2, "quiescent", str(tmp_path), "fail", stderr=subprocess.PIPE)
    words = [process.communicate()[1] for process in processes]
    assert "quiescent: rank 1: " in words[1], words
    assert processes[1].returncode == 1
    assert processes[0].returncode != 0, words
    assert not list(tmp_path.iterdir())


def test_without_an_error_every_rank_destroys_the_group(tmp_path: Path) -> None:
    """So the end of the test above is that of an error."""
    assert [process.wait() for process in start_ranks(2, "quiescent", str(tmp_path), "end")] == [0, 0]
    assert {path.name for path in tmp_path.iterdir()} == {"destroyed-0", "destroyed-1"}
