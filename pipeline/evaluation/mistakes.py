"""AugmentParams reports/mistakes.png: the images that the model was most sure and wrong about, with their credits.

Beside images.py, which decodes, this module may import Pillow, to draw. The bytes are the same on every machine: the
font is Pillow's built-in one, laid out by Pillow itself, and the PNG is stored without compression, whose bytes may
depend on the CPU (2 MB for 24 mistakes, about 80 kB for each more).
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from pipeline.base import files

COLUMNS = 6
CELL = (160, 168)  # pixels: a thumbnail above four lines of text
THUMBNAIL = (152, 104)  # the largest
HEAD, MARGIN, LINE, TEXT = 24, 4, 14, 11  # pixels: title bar, around everything, between lines, height of the letters
NO_CREDIT = "no credit known"


@dataclass(frozen=True)
class Mistake:
    """One image that was taken for something else."""

    image: NDArray[np.uint8]  # [S, S, 3], squeezed
    size: tuple[int, int]  # width and height of the original, which the thumbnail has the shape of
    path: str
    actual: str
    predicted: str
    confidence: float
    credit: str


def credits(license_file: Path) -> dict[str, str]:
    """Licence and photographer of every image that a LICENSE.txt in flower_photos' form lists, by path.

    Such a line reads `daisy/1.jpg CC-BY by A Name - https://…`; the credit is what follows the path. Other lines, and
    a missing file, credit nobody.
    """
    if not license_file.is_file():
        return {}
    lines = license_file.read_text(encoding="utf-8", errors="replace").splitlines()
    parts = (line.partition(" CC-BY ") for line in lines)
    return {path: f"CC-BY {credit.strip()}" for path, found, credit in parts if found}


def without_address(credit: str) -> str:
    """The credit without its web address, so that it fits below a thumbnail. The file name identifies the photo."""
    return re.sub(r"( -)? https?://\S+( -)?", "", credit)


def write(path: Path, title: str, mistakes: Sequence[Mistake]) -> None:
    """Draw the mistakes in their order below the title; the image's text chunk `Credits` has the credits in full."""
    rows = -(-len(mistakes) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * CELL[0], HEAD + rows * CELL[1]), "white")
    _text(sheet, (MARGIN, MARGIN), title, sheet.width - 2 * MARGIN)
    for index, mistake in enumerate(mistakes):
        row, column = divmod(index, COLUMNS)
        _cell(sheet, (column * CELL[0] + MARGIN, HEAD + row * CELL[1]), mistake)
    notes = PngImagePlugin.PngInfo()
    notes.add_itxt("Credits", "".join(f"{mistake.path} {mistake.credit}\n" for mistake in mistakes))
    with files.atomic_file(path) as temporary:
        sheet.save(temporary, format="PNG", compress_level=0, pnginfo=notes)


def _cell(sheet: Image.Image, corner: tuple[int, int], mistake: Mistake) -> None:
    """Draw one mistake with its upper left corner there."""
    left, top = corner
    scale = min(THUMBNAIL[0] / mistake.size[0], THUMBNAIL[1] / mistake.size[1])
    width, height = (max(1, round(side * scale)) for side in mistake.size)
    sheet.paste(Image.fromarray(mistake.image).resize((width, height), Image.Resampling.BICUBIC), corner)
    lines = (
        f"is {mistake.actual}",
        f"taken for {mistake.predicted}: {100 * mistake.confidence:.1f} %",
        mistake.path.rpartition("/")[2],
        without_address(mistake.credit),
    )
    for number, line in enumerate(lines):
        _text(sheet, (left, top + THUMBNAIL[1] + MARGIN + number * LINE), line, THUMBNAIL[0])


def _text(sheet: Image.Image, corner: tuple[int, int], text: str, width: int) -> None:
    """Write one line, cut to `width` pixels."""
    font = ImageFont.load_default(TEXT)
    shown = text = _ascii(text)
    while font.getlength(shown) > width:
        text = text[:-1]
        shown = f"{text}…"
    ImageDraw.Draw(sheet).text(corner, shown, fill="black", font=font)


def _ascii(text: str) -> str:
    """The text in the letters that the built-in font has: accents are dropped, other letters become question marks."""
    apart = (char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return "".join(char if " " <= char <= "~" else "?" for char in apart)
