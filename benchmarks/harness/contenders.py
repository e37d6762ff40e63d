"""Other loaders of training images, written after their documentation: the contenders of `loader` and `peers`.

Each reads the same files, takes random resized crops with flips, and gives batches of normalized float32 images
[n, 3, s, s] with labels, one epoch per iteration. All use every core; torch's own has one worker process per core.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import io, transforms
from torchvision.transforms import v2

from pipeline.base import linux
from pipeline.dataset.normalization import IMAGENET

Batches = Iterable[tuple[Tensor, Tensor]]
Labelled = Sequence[tuple[str, int]]


class Files(Dataset[tuple[Any, int]]):
    """A dataset of (transformed image, label)."""

    def __init__(self, files: Labelled, open_: Callable[[str], Any], transform: Callable[[Any], Any] | None = None):
        self._files, self._open = files, open_
        self._transform = transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._files[index]
        image = self._open(path)
        return self._transform(image) if self._transform else image, label


def pillow(path: str) -> Any:
    """A photo, decoded with Pillow."""
    from PIL import Image

    with Image.open(path) as image:
        return image.convert("RGB")


def decoded(path: str) -> Tensor:
    """A photo uint8 [3, h, w], decoded with torchvision."""
    image: Tensor = io.decode_image(io.read_file(path), mode=io.ImageReadMode.RGB)
    return image


def in_processes(dataset: Dataset[tuple[Any, int]], batch: int, pinned: bool) -> Batches:
    """A shuffling DataLoader with one persistent worker process per core."""
    return DataLoader(
        dataset, batch, shuffle=True, num_workers=linux.usable_cores(), pin_memory=pinned, drop_last=True,
        persistent_workers=True,
    )  # fmt: skip


def tutorial(files: Labelled, side: int, batch: int, pinned: bool = False) -> Batches:
    """The loader of torch's tutorial: Pillow, then transforms of images."""
    steps = [transforms.RandomResizedCrop(side), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    transform = transforms.Compose([*steps, transforms.Normalize(IMAGENET.mean, IMAGENET.std)])
    return in_processes(Files(files, pillow, transform), batch, pinned)


def tensors(files: Labelled, side: int, batch: int, pinned: bool = False) -> Batches:
    """torchvision's v2 transforms on tensors: decoded and cropped as uint8, then converted to float32."""
    crop = v2.RandomResizedCrop(side, antialias=True)
    normalize = v2.Normalize(IMAGENET.mean, IMAGENET.std)
    steps = [crop, v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), normalize]
    return in_processes(Files(files, decoded, v2.Compose(steps)), batch, pinned)


def dali(files: Labelled, side: int, batch: int) -> Batches:
    """NVIDIA DALI's CPU pipeline; its decoder decodes little more than the crop."""
    fn, pipeline, types = (importlib.import_module(f"nvidia.dali.{name}") for name in ("fn", "pipeline", "types"))
    threads = linux.usable_cores()
    with pipeline.Pipeline(batch_size=batch, num_threads=threads, device_id=None, prefetch_queue_depth=2) as pipe:
        paths, labels = [path for path, _ in files], [label for _, label in files]
        encoded, label = fn.readers.file(files=paths, labels=labels, random_shuffle=True, name="photos")
        image = fn.decoders.image_random_crop(
            encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3], device="cpu"
        )
        image = fn.resize(image, resize_x=side, resize_y=side, antialias=True)
        mean, std = ([255 * value for value in values] for values in (IMAGENET.mean, IMAGENET.std))
        image = fn.crop_mirror_normalize(
            image, dtype=types.FLOAT, output_layout="CHW", mean=mean, std=std, mirror=fn.random.coin_flip()
        )
        pipe.set_outputs(image, label)
    pipe.build()

    def batches() -> Batches:
        for _ in range(len(files) // batch):
            images, labels = pipe.run()
            yield torch.from_numpy(images.as_array()), torch.from_numpy(labels.as_array())

    return Again(batches)


def ffcv(files: Labelled, side: int, batch: int) -> Batches:
    """FFCV: writes the photos into one file of its own format first, as JPEGs of the original size."""
    fields, decoders, loader, steps, writer = (
        importlib.import_module(f"ffcv.{name}")
        for name in ("fields", "fields.decoders", "loader", "transforms", "writer")
    )
    path, threads = Path("photos.beton"), linux.usable_cores()
    columns = {"image": fields.RGBImageField(write_mode="jpg"), "label": fields.IntField()}
    writer.DatasetWriter(path, columns, num_workers=threads).from_indexed_dataset(Files(files, pillow))
    mean, std = (255 * np.array(values) for values in (IMAGENET.mean, IMAGENET.std))
    image = [
        decoders.RandomResizedCropRGBImageDecoder((side, side)), steps.RandomHorizontalFlip(),
        steps.NormalizeImage(mean, std, np.float32), steps.ToTensor(), steps.ToTorchImage(),
    ]  # fmt: skip
    label = [decoders.IntDecoder(), steps.ToTensor(), steps.Squeeze()]
    batches: Batches = loader.Loader(
        path, batch_size=batch, num_workers=threads, order=loader.OrderOption.RANDOM, drop_last=True,
        pipelines={"image": image, "label": label},
    )  # fmt: skip
    return batches


class Again:
    """An iterable that calls a function for each epoch."""

    def __init__(self, epoch: Callable[[], Batches]) -> None:
        self._epoch = epoch

    def __iter__(self) -> Any:
        return iter(self._epoch())


@dataclass(frozen=True)
class Loader:
    """A contender."""

    make: Callable[[Labelled, int, int], Batches]  # of files, the side of the crops and the size of a batch
    needs: str  # left out if this module is not installed


def missing(module: str) -> str:
    """The sentence that a module is not installed; empty if it is."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # its package is not installed
        spec = None
    return "" if spec else f"{module} is not installed"


LOADERS = {
    "tutorial": Loader(tutorial, "torchvision"),
    "torchvision v2": Loader(tensors, "torchvision"),
    "DALI": Loader(dali, "nvidia.dali"),
    "FFCV": Loader(ffcv, "ffcv"),
}
