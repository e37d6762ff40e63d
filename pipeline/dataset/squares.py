"""How an image becomes a square, with each `prepare.fit`.

Pillow's bicubic resize is antialiased and computes in integers: its bits are the same on every CPU.
"""

from collections.abc import Callable

from PIL import Image

from pipeline.config.params import Fit

BICUBIC = Image.Resampling.BICUBIC
# The colour of `pad`: ImageNet's mean times 255, rounded, so most models get nearly 0. It is the same on every machine,
# for every split and for every model. A test compares it with the loader's mean.
PAD_COLOUR = (124, 116, 104)


def proportions(fit: Fit, size: tuple[int, int]) -> tuple[int, int]:
    """Width : height of what the square shows, for an original of `size`. Only `none` has those of the original.

    `none` and `squash` have the same pixels. With `none`, crops are cut in the aspect ratio of the original.
    """
    return size if fit == "none" else (1, 1)


def whole(image: Image.Image, size: int) -> Image.Image:
    """The whole image, both sides resized to `size`."""
    return image.resize((size, size), BICUBIC)


def centre(image: Image.Image, size: int) -> Image.Image:
    """The centre of the image whose short side is resized to `size`. Only this part is computed."""
    short = min(image.size)
    left, top = ((side - short) / 2 for side in image.size)
    return image.resize((size, size), BICUBIC, (left, top, left + short, top + short))


def padded(image: Image.Image, size: int) -> Image.Image:
    """The image whose long side is resized to `size`, in the middle of a square of PAD_COLOUR."""
    width, height = (max(1, round(size * side / max(image.size))) for side in image.size)
    square = Image.new("RGB", (size, size), PAD_COLOUR)
    square.paste(image.resize((width, height), BICUBIC), ((size - width) // 2, (size - height) // 2))
    return square


SQUARES: dict[Fit, Callable[[Image.Image, int], Image.Image]] = {
    "none": whole, "squash": whole, "crop": centre, "pad": padded,
}  # fmt: skip
