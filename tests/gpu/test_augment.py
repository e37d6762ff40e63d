"""Cropping and augmentation give the same bits on a GPU as on a CPU."""

import numpy as np
import pytest
import torch

from pipeline.dataset.normalization import IMAGENET
from pipeline.learning import determinism
from pipeline.learning.world import World
from pipeline.loader import augment, resample
from pipeline.loader.resample import Crops
from pipeline.loader.storage import ImageStore
from tests.gpu.training import Figures
from tests.helpers.crops import LAYOUTS, NORMALIZED, drawn, drawn_crops, mixes, random_images


@pytest.mark.gpu(needs="cuda")
def test_a_gpu_makes_the_same_bits(world: World) -> Figures:
    """Images that are cropped, jittered, erased and mixed on both have the same bits and targets."""
    images, draws, labels = random_images(12, 256), drawn(12, 256, 224), torch.arange(12) % 5
    for deterministic in (True, False):
        determinism.make_deterministic(1, deterministic)
        for mix in mixes(12, 224):
            results = []
            for device in (torch.device("cpu"), world.device):
                cut = augment.training_crops(images.to(device), torch.arange(12, device=device), draws, 224, IMAGENET)
                results.append((augment.mix_images(cut, mix), *augment.mix_labels(labels.to(device), mix, 5)))
            assert all(torch.equal(there.cpu(), here) for here, there in zip(*results, strict=True)), "the bits differ"
    return {}


@pytest.mark.gpu(needs="cuda")
def test_kernels_make_the_bits_of_the_loop(world: World) -> Figures:
    """For three pairs of sizes and 300 boxes each: the two kernels in both memory formats."""
    mean, scale = (values.to(world.device) for values in NORMALIZED)
    for side, out in ((256, 224), (80, 96), (256, 32)):
        images, crops = random_images(5, side), drawn_crops(300, 5, side, out, seed=side)
        loops = resample.by_loops(images, crops, *NORMALIZED)
        rows, boxes, flips = (tensor.to(world.device) for tensor in (crops.rows, crops.boxes, crops.flips))
        on_gpu = Crops(rows, boxes, flips, out)
        images = images.to(world.device)
        for layout in LAYOUTS:
            result = resample.by_kernels(images, on_gpu, mean, scale, layout)
            assert result.is_contiguous(memory_format=layout)
            assert torch.equal(result.cpu(), loops), f"{side} to {out} pixels, {layout}: the kernels' bits differ"
    return {}


@pytest.mark.gpu(needs="cuda")
def test_images_arrive_while_the_gpu_computes(world: World) -> Figures:
    """Batches copied from pinned memory, beside long products of matrices, are the images that were asked for."""
    images = random_images(64, 256).pin_memory()
    there, expected = ImageStore(images.to(world.device), world.device), images.long().sum((1, 2, 3))
    here = ImageStore(images, world.device)
    matrix, totals = torch.rand(4096, 4096, device=world.device), []
    batches = [np.random.default_rng(step).integers(0, 64, 32) for step in range(40)]
    for rows in batches:
        for store in (here, there):
            sent, numbers = store.send(store.collect(rows))
            totals.append(sent[numbers].long().sum((1, 2, 3)))
        matrix = matrix @ matrix / 4096
    for rows, *sums in zip(batches, totals[::2], totals[1::2], strict=True):
        assert all(torch.equal(one.cpu(), expected[rows]) for one in sums), "other images have arrived"
    return {}
