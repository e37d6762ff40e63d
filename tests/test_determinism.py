"""Operators that are not deterministic are refused in one line."""

from typing import Any

import pytest
import torch

from pipeline.config import params
from pipeline.learning import determinism
from pipeline.running import failures
from tests.conftest import on_cpu
from tests.helpers.refusals import refuses


def test_an_error_of_torch_is_named_by_its_param(raw: dict[str, Any]) -> None:
    """An operator without a deterministic version, and BatchNorm over one value. Other errors stay as they are."""
    settings = params.parse(on_cpu(raw)).train
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with refuses(("train.deterministic", "pair")) as error, failures.explain_torch_errors(settings):
            torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))
        assert "put_" in error.value.faults[0].reason
    finally:
        torch.use_deterministic_algorithms(before)
    with refuses(("train.batch_size", "pair")), failures.explain_torch_errors(settings):
        torch.nn.BatchNorm2d(4)(torch.ones(1, 4, 1, 1))
    for other in (RuntimeError, ValueError):
        with pytest.raises(other, match="something else"), failures.explain_torch_errors(settings):
            raise other("something else")


@pytest.mark.parametrize("deterministic", [True, False])
def test_cudnn_chooses_by_time_only_where_bytes_are_not_promised(deterministic: bool) -> None:
    """By time, cuDNN's algorithm is that of the moment; without a promise, nothing is faster."""
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    try:
        determinism.make_deterministic(1, deterministic)
        assert torch.backends.cudnn.benchmark is not deterministic
        assert torch.backends.cudnn.deterministic is deterministic
        assert torch.are_deterministic_algorithms_enabled() is deterministic
    finally:
        determinism.make_deterministic(before[1], before[0])
