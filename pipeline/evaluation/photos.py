"""Reads the images of `predict`: files, folders, addresses, standard input; without torch, which is slow to import."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from pipeline.base import files
from pipeline.base.errors import Fault, UserError, without_secrets
from pipeline.base.text import visible
from pipeline.data import decoders, images
from pipeline.data.decoders import NotDecoded
from pipeline.models.description import View
from pipeline.sources.layout import count_with_verb


@dataclass(frozen=True)
class LoadedImage:
    """An image file as `prepare` would pack it."""

    path: Path
    pixels: NDArray[np.uint8]  # [S, S, 3]
    size: tuple[int, int]  # width and height that the square stands for, as in `Packed.sizes`
    name: str = ""  # as a person typed it, if that is no path


def load_image(path: Path, view: View, max_pixels: int, min_side: int = 1) -> LoadedImage:
    """Decode one file once.

    Raises UserError if it is not an image, cannot be read, has more than `max_pixels`, or a side below `min_side`.
    """
    try:
        draft = images.DRAFT * view.packed_size
        with images.decode(path, max_pixels, draft, view.grey, min_side=min_side) as original:
            return LoadedImage(path, *images.as_square(original, view.packed_size, view.fit))
    except OSError as error:
        raise _read_refusal(path, error) from None


def received(source: str, folder: Path) -> Path:
    """A new file in `folder`: what an address sends, or standard input has (`-`).

    Raises UserError if the address cannot be read.
    """
    from pipeline.sources import fetch  # here, because it imports a client of HTTP

    name = PurePosixPath(source.partition("?")[0]).name[-50:]  # a file has at most 255 bytes; a query can have more
    target = Path(tempfile.mkdtemp(dir=folder), name)
    if source != "-":
        return fetch.download(source, target, "", fetch.IMAGE_BYTES, fetch.IMAGE)
    target.write_bytes(sys.stdin.buffer.read(fetch.IMAGE_BYTES) if sys.stdin else b"")
    return target


def image_paths(path: Path) -> list[Path]:
    """The path itself if it is a file; all files below it, sorted, without junk, if it is a folder.

    Raises UserError for a folder without files, and OSError if the path cannot be looked up.
    """
    if not path.is_dir():
        return [path]
    paths = sorted(
        file
        for file in path.rglob("*")
        if (file.is_symlink() or not file.is_dir()) and not files.is_junk(file.relative_to(path))
    )
    if not paths:
        raise _empty_folder_refusal(path)
    return paths


def load_images(
    arguments: Sequence[Path | str], view: View, max_pixels: int, min_side: int, refusals: list[UserError], folder: Path
) -> Iterator[LoadedImage]:
    """Every image of these files and folders, in order. Other files are named on stderr and put into `refusals`.

    A text is what `received` reads, into `folder`. In a folder, files that are no images are only counted, in one line;
    a folder without an image is refused. The accepted formats are named once, at the end.
    """

    def refuse(error: UserError, name: str = "") -> None:
        for fault in error.faults:
            allowed = "" if isinstance(error, NotDecoded) else fault.allowed
            line = replace(fault, key=visible(name or fault.key), allowed=allowed)
            print(f"predict: {visible(str(line))}", file=sys.stderr)
        refusals.append(error)

    for argument in arguments:
        name = "" if isinstance(argument, Path) else argument
        try:
            paths = image_paths(argument) if isinstance(argument, Path) else [received(argument, folder)]
        except UserError as error:
            refuse(error)
            continue
        except OSError as error:
            refuse(_read_refusal(argument, error))
            continue
        other_files = []  # files of a folder that are no images
        for path in paths:
            try:
                yield replace(load_image(path, view, max_pixels, min_side), name=name)
            except UserError as error:
                if isinstance(error, NotDecoded) and error.is_other and not name and path != argument:
                    other_files.append(path)
                else:
                    refuse(error, without_secrets(name))
        if other_files and len(other_files) == len(paths):
            refuse(_empty_folder_refusal(argument))
        elif other_files:
            number = count_with_verb(len(other_files), "file", "files")
            line = f"{argument}: {number} left out: unknown format, video or sidecar (first: {other_files[0]})"
            print(f"predict: {visible(line)}", file=sys.stderr)
    if any(isinstance(error, NotDecoded) for error in refusals):
        allowed = ", ".join(decoders.NAMES)
        print(f"predict: allowed: a whole image as {allowed}", file=sys.stderr)


def _read_refusal(path: Path | str, error: OSError) -> UserError:
    return UserError(Fault(str(path), str(error.strerror), "missing", remedy="give the path of an image"))


def _empty_folder_refusal(folder: Path | str) -> UserError:
    return UserError(Fault(str(folder), "no image in this folder", "missing", remedy="give images, or another folder"))


def count_files(arguments: Sequence[Path | str]) -> int:
    """The number of files that `load_images` will read."""
    return sum(
        sum(not path.is_dir() for path in place.rglob("*")) if isinstance(place, Path) and place.is_dir() else 1
        for place in arguments
    )
