"""Public data sets that torchvision downloads: `data.source: torchvision/<name>`.

A set is in SETS if its class in torchvision downloads it, compares what it downloads with MD5 sums, and gives each
image one class. The images become files below folders of splits and classes, so that all other code reads them as it
reads any folder. Images that torchvision decodes from arrays become PNG files; image files are copied as they are.
"""

import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError

from pipeline.base import files, locks, threads
from pipeline.base.errors import Fault, UserError
from pipeline.sources.fetch import STALLED


@dataclass(frozen=True)
class PublicSet:
    """A class of torchvision.datasets, and what is known of its images before they are downloaded."""

    page: str  # of its authors, with the licence
    classes: int
    images: Mapping[str, int]  # split → images
    arguments: Mapping[str, dict[str, Any]]  # split → arguments of torchvision's class
    archives: str  # the files that torchvision downloads, as a pattern below its folder
    paths: str = ""  # the attribute with the paths of the images; empty if the set has arrays


_BY_FLAG: dict[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
_DIGITS, _OBJECTS = {"train": 60_000, "test": 10_000}, {"train": 50_000, "test": 10_000}
_CIFAR, _OXFORD = "https://www.cs.toronto.edu/~kriz/cifar.html", "https://www.robots.ox.ac.uk/~vgg/data"
_ZALANDO, _KMNIST = "https://github.com/zalandoresearch/fashion-mnist", "https://github.com/rois-codh/kmnist"
SETS = {  # data.source → the set
    "torchvision/MNIST": PublicSet("http://yann.lecun.com/exdb/mnist/", 10, _DIGITS, _BY_FLAG, "MNIST/raw/*.gz"),
    "torchvision/FashionMNIST": PublicSet(_ZALANDO, 10, _DIGITS, _BY_FLAG, "FashionMNIST/raw/*.gz"),
    "torchvision/KMNIST": PublicSet(_KMNIST, 10, _DIGITS, _BY_FLAG, "KMNIST/raw/*.gz"),
    "torchvision/CIFAR10": PublicSet(_CIFAR, 10, _OBJECTS, _BY_FLAG, "*.tar.gz"),
    "torchvision/CIFAR100": PublicSet(_CIFAR, 100, _OBJECTS, _BY_FLAG, "*.tar.gz"),
    "torchvision/Flowers102": PublicSet(
        page=f"{_OXFORD}/flowers/102/",
        classes=102,
        images={"train": 1020, "val": 1020, "test": 6149},
        arguments={split: {"split": split} for split in ("train", "val", "test")},
        archives="flowers-102/*.*",
        paths="_image_files",
    ),
    "torchvision/OxfordIIITPet": PublicSet(
        page=f"{_OXFORD}/pets/",
        classes=37,
        images={"train": 3680, "test": 3669},
        arguments={"train": {"split": "trainval"}, "test": {"split": "test"}},
        archives="oxford-iiit-pet/*.tar.gz",
        paths="_images",
    ),
}


def write(source: str, folder: Path, archives: Path, workers: int) -> None:
    """Fill an empty folder with the images of a set: <split>/<class>/<file>.

    What torchvision downloads is kept in `archives`; what it unpacks is removed. Raises UserError if the set cannot be
    downloaded.
    """
    public, home = SETS[source], archives / source
    if home.is_symlink():
        reason, remedy = "what torchvision has not downloaded is removed there", "link a folder above it, or none"
        raise UserError(Fault(str(home), "a link", "value", reason, remedy=remedy))
    with locks.exclusive(home):  # trials of a sweep may need the same set at the same time
        _remove_unpacked(home, public.archives)  # of a run that was killed: torchvision may take it for complete
        try:
            for split, arguments in public.arguments.items():
                part = _load(source, home, arguments)
                print(f"download: {source}: {len(part):,} images of {split}", flush=True)
                _write_part(part, public.paths, folder / split, workers)
        finally:
            _remove_unpacked(home, public.archives)


def _remove_unpacked(home: Path, archives: str) -> None:
    """Remove all below `home` that torchvision did not download."""
    downloaded = {*home.glob(archives)}
    for path in sorted(home.rglob("*"), reverse=True):
        if path.is_file() and path not in downloaded:
            files.remove(path)
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _load(source: str, home: Path, arguments: Mapping[str, Any]) -> Any:
    """A part of a set as torchvision's object; it is downloaded and unpacked first. Raises UserError if that fails."""
    import torchvision  # takes seconds, and no other source needs it

    earlier = socket.getdefaulttimeout()
    socket.setdefaulttimeout(STALLED)  # torchvision has no limit of its own, and would wait without end
    try:
        return getattr(torchvision.datasets, Path(source).name)(home, download=True, **arguments)
    except (RuntimeError, URLError, HTTPException, ConnectionError, TimeoutError) as error:
        reason = f"torchvision cannot download it: {' '.join(str(error).split()) or type(error).__name__}"
        remedy = f"try again later; or fetch its files elsewhere and put them here: {home / SETS[source].archives}"
        raise UserError(Fault("data.source", source, "failed", reason, remedy=remedy)) from None
    finally:
        socket.setdefaulttimeout(earlier)


def _write_part(part: Any, paths: str, folder: Path, workers: int) -> None:
    """Write the images of a part to `folder`/<class>/. A slash in the name of a class becomes a hyphen."""
    names = [name.replace("/", "-") for name in part.classes]

    def write_image(number: int) -> None:
        if paths:  # the files: decoded and written again, they would be several times as large
            image, label = getattr(part, paths)[number], part._labels[number]
            target = folder / names[label] / image.name
        else:
            image, label = part[number]
            target = folder / names[label] / f"{number + 1:05d}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        if paths:
            shutil.copyfile(image, target)
        else:
            image.save(target, compress_level=0)  # the bytes depend on no version of zlib

    for _ in threads.ordered_map(write_image, range(len(part)), workers, "download"):
        pass
