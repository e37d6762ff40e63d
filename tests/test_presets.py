"""The presets of `perennial start`: for every machine and every number of images, params that can run and learn."""

from itertools import product
from typing import Any

import pytest

from pipeline.checks import validity
from pipeline.checks.machine import Machine
from pipeline.config import params
from pipeline.planning import presets
from pipeline.planning.presets import NAMES
from tests.conftest import change, read_params

AMPERE, TURING = (8, 0), (7, 5)
MACHINES = {
    "one core": Machine(0, "missing", compiler=False, cores=1),
    "many cores": Machine(0, "usable", compiler=True, cores=64),
    "one GPU": Machine(1, "missing", True, (AMPERE,), 13, 13, cores=16),
    "one GPU without a compiler": Machine(1, "missing", False, (AMPERE,), 13, 13, cores=16),
    "an older GPU": Machine(1, "missing", False, (TURING,), 13, 13, cores=4),
    "three GPUs": Machine(3, "without extensions", True, (AMPERE, AMPERE, TURING), 13, 13, cores=64),
    "eight GPUs with Apex": Machine(8, "usable", True, (AMPERE,) * 8, 13, 13, cores=64),
    "one GPU with Apex": Machine(1, "usable", True, (AMPERE,), 13, 13, cores=8),
}
IMAGES = (16, 80, 588, 3_000, 1_000_000)


def raw_with(values: presets.Values) -> dict[str, Any]:
    """The committed params with the values of a preset."""
    return change(read_params(), **{name.replace(".", "__"): value for name, value in values.items()})


@pytest.mark.parametrize(("machine", "name", "images"), list(product(MACHINES, NAMES, IMAGES)))
def test_a_preset_can_run_on_its_machine(machine: str, name: str, images: int) -> None:
    """No setting is refused, and a batch is no larger than the training images; or the preset says what it needs."""
    here = MACHINES[machine]
    able = {
        "apex": here.apex == "usable" and here.cuda_devices > 0,
        "modern": here.cuda_devices > 0 and min(here.compute_capabilities) >= AMPERE,
        "fast": here.cuda_devices > 0,
    }
    assert (presets.obstacle(name, here) == "") == able.get(name, True)
    if not able.get(name, True):
        return
    config = params.parse(raw_with(presets.changes(name, here, images)))
    assert validity.faults(config, here) == []
    assert config.train.batch_size <= images
    assert config.train.batch_size // config.run.processes >= presets.SMALLEST


@pytest.mark.parametrize("machine", MACHINES)
def test_every_preset_sets_the_same_keys(machine: str) -> None:
    """So nothing of an earlier choice stays when another one is taken."""
    keys = [set(presets.changes(name, MACHINES[machine], images)) for name in NAMES for images in IMAGES]
    assert all(one == keys[0] for one in keys)


def test_apex_is_the_committed_default() -> None:
    """With enough images, and one GPU or none to be seen, the preset `apex` changes nothing."""
    for machine in ("one GPU with Apex", "one core"):
        assert raw_with(presets.changes("apex", MACHINES[machine], 3_000)) == read_params()


def test_few_images_get_smaller_batches_and_more_epochs() -> None:
    """An epoch has at least ten steps, the learning rate falls with the batch, and the steps of all epochs remain."""
    many, few = (presets.changes("scratch", MACHINES["one core"], images) for images in (588, 90))
    assert (many["train.batch_size"], few["train.batch_size"]) == (16, 8)
    assert few["train.lr"] == many["train.lr"] / 2
    assert few["train.epochs"] > 2 * many["train.epochs"]
    assert 90 // few["train.batch_size"] >= presets.STEPS
    # The data set is counted before images are refused, so a batch is well below the number of training images.
    for name, machine, images in product(NAMES, MACHINES.values(), range(2, 16)):
        assert 2 * presets.changes(name, machine, images)["train.batch_size"] <= images


def test_a_tutorial_has_sixteen_images_on_each_gpu() -> None:
    """The learning rate follows, and BatchNorm is over all of them; one GPU has graphs."""
    one, eight = (presets.changes("tutorial", MACHINES[here], 3_000) for here in ("one GPU", "eight GPUs with Apex"))
    keys = ("train.batch_size", "run.processes", "train.lr", "train.sync_bn", "train.cuda_graphs")
    assert [one[key] for key in keys] == [16, 1, 0.001, "none", True]
    assert [eight[key] for key in keys] == [128, 8, 0.008, "torch", False]
