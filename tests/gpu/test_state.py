"""The state beside the weights: their average, and what a resume restores."""

import multiprocessing
import tempfile
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipeline.config.params import APEX_LEVELS
from pipeline.learning import chain, loop
from pipeline.learning.ema import Ema
from pipeline.learning.state import STATE, Progress
from pipeline.learning.world import World
from tests.gpu.training import NATIVE, Figures, batches, begin, distance, setup, state_digest, train


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "O1", "O2"])
def test_ema(world: World, precision: str) -> Figures:
    """The average equals its closed form. The model has it inside `applied`, and the weights before and after."""
    ready = setup(world, precision)
    ema = Ema.create(ready.bare, 0.75)
    expected = [average.double() for average in ema.averages]
    for batch in batches(world, 0, 5):
        train(ready, [batch], ema=ema)
        with ready.precision.exact():
            expected = [0.75 * e + 0.25 * weight.double() for e, weight in zip(expected, ema.weights, strict=True)]
    with ready.precision.exact():
        apart = distance(*(torch.cat([t.flatten() for t in tensors]) for tensors in (ema.averages, expected)))
    assert apart < 1e-6, f"the average differs from its closed form by {apart}"
    images = batches(world, 9, 10)[0].images

    def answer() -> Tensor:
        (logits,) = loop.logits(ready.model, [images], ready.precision)
        return logits

    before = answer()
    with ema.swap():
        inside, averages = answer(), deepcopy(ready.bare.state_dict())
    assert torch.equal(answer(), before), "after applied the weights answer"
    assert not torch.equal(inside, before), "inside applied the averages answer"
    ready.bare.load_state_dict(averages)
    assert torch.equal(answer(), inside), "inside applied nothing but the averages answers"
    return {"difference": apart}


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [*NATIVE, "O1", "O2"])
def test_resume(world: World, precision: str) -> Figures:
    """Three steps, a save, a new process and three more steps give the bits of six steps."""
    with tempfile.TemporaryDirectory() as folder:
        ready = setup(world, precision)
        train(ready, batches(world, 0, 3))
        state = {
            "model": ready.bare.state_dict(),
            "precision": ready.precision.state_dict(ready.optimizer),
            "optimizer": ready.optimizer.state_dict(),
        }
        torch.save(state, Path(folder) / "checkpoint.pt")
        train(ready, batches(world, 3, 6))
        other = multiprocessing.get_context("spawn").Process(target=_go_on, args=(world, precision, folder))
        other.start()
        other.join()
        assert other.exitcode == 0, "the second process ends well"
        assert (Path(folder) / "digest").read_text() == state_digest(ready), "a resumed run has the same bits"
    return {"digest": state_digest(ready)[:16]}


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "O2"])
def test_the_hash_of_the_state_beside_further_steps(world: World, precision: str) -> Figures:
    """It is that of the state when it was begun, although the next steps change the weights meanwhile."""
    ready = setup(world, precision)
    learner = loop.Learner(
        ready.bare, torch.nn.CrossEntropyLoss(), ready.optimizer, ready.precision, Ema.create(ready.bare, 0.5), 0.0
    )
    train(ready, batches(world, 0, 3), ema=learner.ema)
    row, checked = {"epoch": 1, STATE: ""}, list[tuple[int, str]]()
    progress = Progress(step=3, history=[row])
    expected = chain.sha256(chain.whole_state(learner, progress))
    digest = chain.Digest(1, lambda epoch, state: checked.append((epoch, state)))
    for _ in range(10):  # one of them might end before the next step
        digest.begin(learner, progress, world.device)
        before = state_digest(ready) if world.device.type == "cpu" else ""
        train(ready, batches(world, 3, 6), ema=learner.ema)
        digest.join()
        assert before != state_digest(ready), "the steps change the state"
        if len(checked) == 1:
            assert checked == [(1, expected)], "the hash is that of its beginning"
            assert row[STATE] == expected, "and in the history"
    assert len({state for _, state in checked}) == 10, "each beginning has another state"
    return {"digest": expected[:16]}


def _go_on(world: World, precision: str, folder: str) -> None:
    """The second process of `test_resume`."""
    begin(world, with_apex=precision in APEX_LEVELS)
    ready = setup(world, precision)
    state = torch.load(Path(folder) / "checkpoint.pt", map_location=world.device, weights_only=True)
    ready.bare.load_state_dict(state["model"])
    ready.precision.load_state_dict(state["precision"], ready.optimizer)
    ready.optimizer.load_state_dict(state["optimizer"])
    train(ready, batches(world, 3, 6))
    (Path(folder) / "digest").write_text(state_digest(ready))
