"""Pictures for TensorBoard: training crops with their class, and a confusion matrix. Nothing is hashed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

RGB = NDArray[np.uint8]  # [height, width, 3]
COLUMNS, SMALLEST, STRIP = 4, 96, 16  # crops per row, pixels of a crop's side, pixels of the line with its class
NAMED = 20  # classes; with more, a cell of the matrix has no number, and a row no name
CELL, NAMES, SIDE = 36, 120, 720  # pixels of a cell, of the names, and of a matrix of many classes
DARK = (8, 48, 107)  # of a share of 1


def crops(images: RGB, classes: Sequence[str]) -> RGB:
    """Images uint8 [n, side, side, 3] in a grid, each above the name of its class."""
    side = max(images.shape[1], SMALLEST)
    rows = -(-len(images) // COLUMNS)
    canvas = Image.new("RGB", (COLUMNS * side, rows * (side + STRIP)), "white")
    draw = ImageDraw.Draw(canvas)
    for number, (pixels, name) in enumerate(zip(images, classes, strict=True)):
        x, y = number % COLUMNS * side, number // COLUMNS * (side + STRIP)
        canvas.paste(Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST), (x, y))
        draw.text((x + 3, y + side + 1), fitting(name, side - 6), "black", font())
    return np.asarray(canvas)


def confusion(counts: NDArray[np.int64], classes: Sequence[str]) -> RGB:
    """Counts [actual, predicted]; the darker, the larger the share of a row. Of few classes with numbers and names."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    colors = (255 - shares[:, :, None] * (255 - np.array(DARK))).astype(np.uint8)
    if len(classes) > NAMED:
        repeat = max(SIDE // len(classes), 1)
        return np.asarray(colors.repeat(repeat, 0).repeat(repeat, 1))
    side = CELL * len(classes)
    canvas = Image.new("RGB", (NAMES + side, STRIP + side), "white")
    canvas.paste(Image.fromarray(colors.repeat(CELL, 0).repeat(CELL, 1)), (NAMES, STRIP))
    draw = ImageDraw.Draw(canvas)
    for row, name in enumerate(classes):
        middle = STRIP + CELL * row + CELL // 2
        draw.text((3, middle), fitting(f"{row + 1} {name}", NAMES - 6), "black", font(), "lm")
        draw.text((NAMES + CELL * row + CELL // 2, 2), f"{row + 1}", "black", font(), "mt")
        for column, count in enumerate(counts[row]):
            ink = "white" if shares[row, column] > 0.5 else "black"
            draw.text((NAMES + CELL * column + CELL // 2, middle), f"{count}" if count else "", ink, font(), "mm")
    return np.asarray(canvas)


def font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font."""
    return ImageFont.load_default(12)


def fitting(name: str, width: int) -> str:
    """A name that is not wider than so many pixels: cut, and in one line."""
    text = " ".join(name.split())
    while text and font().getlength(text) > width:
        text = f"{text[:-2]}…" if len(text) > 2 else ""
    return text
