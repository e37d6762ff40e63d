"""Cropping and augmentation give the same bits on a GPU as on a CPU."""

import pytest
import torch

from pipeline.engine import determinism
from pipeline.engine.world import World
from pipeline.loader import augment
from tests.gpu.training import Figures
from tests.test_augment import drawn, mixes
from tests.test_resample import random_images


@pytest.mark.gpu(needs="cuda")
def test_a_gpu_makes_the_same_bits(world: World) -> Figures:
    """Images that are cropped, jittered, erased and mixed on both have the same bits and targets."""
    images, draws, labels = random_images(12, 256), drawn(12, 256, 224), torch.arange(12) % 5
    for deterministic in (True, False):
        determinism.make_deterministic(1, deterministic)
        for mix in mixes(12, 224):
            results = []
            for device in (torch.device("cpu"), world.device):
                cut = augment.training_crops(images.to(device), torch.arange(12, device=device), draws, 224)
                results.append((augment.mix_images(cut, mix), *augment.mix_labels(labels.to(device), mix, 5)))
            assert all(torch.equal(there.cpu(), here) for here, there in zip(*results, strict=True)), "the bits differ"
    return {}
