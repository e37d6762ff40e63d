"""Small JPEGs of the original images, as text for a page.

The bytes are the same on every CPU: Pillow resizes with integers, and libjpeg-turbo's vector code for the transform
that it uses by default ("islow") gives the bits of its C code. A test encodes with and without that code. A PNG would
depend on how zlib was built for the CPU.
"""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.base import threads
from pipeline.config.params import Grey
from pipeline.data import images
from pipeline.data.decoders import Refused
from pipeline.sources.originals import Originals, missing_image

SIDE = 192  # pixels of the longer side; a smaller image keeps its size
QUALITY = 72


@dataclass(frozen=True)
class Thumbnail:
    """A picture for `<img>`. An empty `source` is the plain case of a file that has no picture."""

    source: str
    width: int
    height: int


NO_PICTURE = Thumbnail("", 0, 0)


def pictures(
    originals: Originals, paths: Mapping[str, bool], grey: Grey, workers: int, name: str
) -> dict[str, Thumbnail]:
    """The thumbnail of each path, computed by `workers` threads. `name`: of the progress bar.

    The value of a path says whether it must be possible to decode the file; else the thumbnail may be NO_PICTURE.
    Raises UserError if a file is not the one that `split` saw.
    """

    def load(path: str) -> Thumbnail:
        file, sha256 = originals.file(path)
        try:
            with images.decode(file, draft=2 * SIDE, grey=grey, sha256=sha256) as original:
                return encode(original.image, original.size)
        except FileNotFoundError:
            raise missing_image(file) from None
        except Refused:
            if paths[path]:
                raise
            return NO_PICTURE

    return dict(zip(paths, threads.ordered_map(load, list(paths), workers, name), strict=True))


def of_picture(path: Path) -> Thumbnail:
    """The thumbnail of a picture that this project wrote."""
    with Image.open(path) as image:
        return encode(image.convert("RGB"), image.size)


def of_pixels(pixels: NDArray[np.uint8]) -> Thumbnail:
    """The thumbnail of RGB pixels [h, w, 3]."""
    image = Image.fromarray(pixels)
    return encode(image, image.size)


def encode(image: Image.Image, size: tuple[int, int]) -> Thumbnail:
    """The thumbnail of an RGB image in the shape of `size`, the width and height of the original."""
    scale = min(1.0, SIDE / max(size))
    width, height = (max(1, round(side * scale)) for side in size)
    content = io.BytesIO()
    image.resize((width, height), Image.Resampling.BICUBIC).save(content, "JPEG", quality=QUALITY, optimize=True)
    return Thumbnail(f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}", width, height)
