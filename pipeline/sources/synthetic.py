"""A synthetic flower data set: five kinds in five class folders, for a demo that downloads nothing.

The kinds differ in the number and the shape of their petals. Colour, size, position, rotation, tilt, background, blur
and noise are random, with ranges that overlap between kinds, so a classifier has to look at the shape.

Image i is a pure function of (seed, i), with the same bytes on any machine. The random numbers are counter-based.
Coordinates are rounded to integers before anything is drawn. All pixel arithmetic is in integers. The PNG is not
compressed, because a compressor's output may depend on the CPU. A larger number of images does not change the earlier
images.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator, Philox
from PIL import Image, ImageDraw, ImageFilter

Colour = tuple[int, int, int]
Point = tuple[float, float]

SCALE = 4  # images are drawn larger by this factor, then reduced: smooth edges without floats

COLOURS: dict[str, Colour] = {
    "white": (240, 238, 230),
    "yellow": (242, 204, 60),
    "orange": (236, 132, 44),
    "red": (206, 44, 44),
    "pink": (236, 140, 176),
    "magenta": (196, 56, 130),
    "lilac": (180, 146, 216),
    "violet": (112, 66, 168),
    "blue": (84, 110, 212),
}
BACKGROUNDS: tuple[tuple[Colour, Colour], ...] = (  # the colours at the top and at the bottom
    ((150, 190, 228), (96, 142, 72)),  # sky over a meadow
    ((52, 92, 44), (98, 144, 62)),  # grass
    ((112, 140, 92), (94, 72, 52)),  # soil
)
LEAF: tuple[Point, ...] = ((0, 0.02), (0.3, 0.2), (0.6, 0.18), (1, 0))

LICENSE = """\
The images in this folder were drawn by Perennial (data.source: synthetic). They show no real flowers.
They are free to use for any purpose: CC0 1.0, https://creativecommons.org/publicdomain/zero/1.0/
"""


@dataclass(frozen=True)
class Kind:
    """One kind of flower. Lengths are fractions of a petal's length."""

    petals: tuple[int, int]  # the smallest and the largest number
    outline: tuple[Point, ...]  # one side of a petal, from base to tip: (position along the petal, half the width)
    twist: float  # the sideways shift of the tip
    centre: tuple[float, float]  # the smallest and the largest radius of the disk in the middle
    colours: tuple[str, ...]


KINDS: dict[str, Kind] = {
    "aster": Kind(
        petals=(15, 21),
        outline=((0, 0.03), (0.4, 0.08), (0.85, 0.1), (1, 0.03)),
        twist=0,
        centre=(0.24, 0.32),
        colours=("white", "yellow", "pink", "lilac", "violet", "blue"),
    ),
    "clematis": Kind(
        petals=(6, 6),
        outline=((0, 0.05), (0.3, 0.26), (0.6, 0.32), (0.8, 0.16), (1, 0), (1, 0)),
        twist=0,
        centre=(0.14, 0.22),
        colours=("white", "pink", "magenta", "lilac", "violet", "blue"),
    ),
    "cosmos": Kind(
        petals=(8, 8),
        outline=((0, 0.04), (0.4, 0.22), (0.85, 0.34), (1, 0.26), (1, 0.16), (0.86, 0.12), (0.98, 0.05), (1, 0)),
        twist=0,
        centre=(0.18, 0.26),
        colours=("white", "yellow", "orange", "red", "pink", "magenta"),
    ),
    "periwinkle": Kind(
        petals=(5, 5),
        outline=((0, 0.06), (0.4, 0.2), (0.8, 0.5), (1, 0.42), (1, 0.2), (0.94, 0)),
        twist=0.45,
        centre=(0.1, 0.18),
        colours=("white", "pink", "magenta", "lilac", "violet", "blue"),
    ),
    "poppy": Kind(
        petals=(4, 4),
        outline=((0, 0.15), (0.3, 0.6), (0.7, 0.82), (1, 0.55), (1.04, 0.25), (1, 0)),
        twist=0,
        centre=(0.16, 0.26),
        colours=("white", "yellow", "orange", "red", "pink", "lilac"),
    ),
}


def draw(folder: Path, count: int, size: int, seed: int, workers: int) -> None:
    """Fill `folder` with `count` images of about `size` pixels per side, equally many of each kind."""
    for name in KINDS:
        (folder / name).mkdir()
    (folder / "LICENSE.txt").write_text(LICENSE, encoding="utf-8", newline="\n")

    def save(index: int) -> None:
        number, kind_index = divmod(index, len(KINDS))
        name = list(KINDS)[kind_index]
        image(name, size, seed, index).save(folder / name / f"{name}_{number + 1:05d}.png", compress_level=0)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(save, range(count)))  # raises what a thread has raised


def image(name: str, size: int, seed: int, index: int) -> Image.Image:
    """One flower of a kind as RGB; each side is 0.8 to 1.25 times `size`."""
    random = Generator(Philox(key=np.array([seed, index], dtype=np.uint64)))
    width, height = (SCALE * round(size * random.uniform(0.8, 1.25)) for _ in range(2))
    canvas = _background(random, width, height)
    _flower(random, canvas, KINDS[name])
    canvas = canvas.filter(ImageFilter.BoxBlur(int(random.integers(0, 3))))
    return _add_noise(random, canvas.reduce(SCALE))


def _background(random: Generator, width: int, height: int) -> Image.Image:
    """A blurred gradient with spots of light and leaves."""
    top, bottom = (_vary(random, colour, 24) for colour in BACKGROUNDS[random.integers(len(BACKGROUNDS))])
    rows = np.arange(height)[:, None]
    gradient = (np.array(top) * (height - 1 - rows) + np.array(bottom) * rows) // (height - 1)
    canvas = Image.fromarray(np.repeat(gradient.astype(np.uint8)[:, None], width, axis=1))
    brush = ImageDraw.Draw(canvas)
    side = min(width, height)
    for _ in range(random.integers(4, 12)):
        colour = _vary(random, (top, bottom, *COLOURS.values())[random.integers(2 + len(COLOURS))], 20)
        radius = random.uniform(0.02, 0.09) * side
        _disk(brush, (random.uniform(0, width), random.uniform(0, height)), radius, _mix(colour, bottom, 0.5))
    for _ in range(random.integers(3, 9)):
        position = (random.uniform(0, width), random.uniform(0.3, 1.1) * height)
        colour = _vary(random, (66, 116, 50), 30)
        _shape(brush, LEAF, position, random.uniform(0.2, 0.55) * side, random.uniform(0, 2 * math.pi), colour=colour)
    return canvas.filter(ImageFilter.BoxBlur(int(random.integers(2, side // 32 + 3))))


def _flower(random: Generator, canvas: Image.Image, kind: Kind) -> None:
    """Draw stem, petals and disk, seen a little from the side."""
    brush = ImageDraw.Draw(canvas)
    side = min(canvas.size)
    length = random.uniform(0.3, 0.5) * side
    centre = (random.uniform(0.38, 0.62) * canvas.width, random.uniform(0.36, 0.58) * canvas.height)
    tilt = random.uniform(0.7, 1)
    colour = _vary(random, COLOURS[kind.colours[random.integers(len(kind.colours))]], 26)
    shadow, light = _mix(colour, (40, 24, 48), 0.3), _mix(colour, (255, 250, 240), 0.3)

    foot = (centre[0] + random.uniform(-0.25, 0.25) * side, float(canvas.height))
    brush.line(_round_points([centre, foot]), fill=_vary(random, (72, 124, 52), 20), width=round(0.025 * side))

    petals = int(random.integers(kind.petals[0], kind.petals[1] + 1))
    turn = random.uniform(0, 2 * math.pi)
    bend = kind.twist * random.choice([-1, 1])  # to the left or to the right
    for petal in range(petals):
        angle = turn + 2 * math.pi * petal / petals + random.uniform(-0.3, 0.3) / petals
        long = length * random.uniform(0.9, 1.05)
        for end, breadth, tone in ((1, 1, shadow), (0.96, 0.88, colour), (0.8, 0.3, light)):
            outline = [(end * along, breadth * half) for along, half in kind.outline]
            _shape(brush, outline, centre, long, angle, colour=tone, tilt=tilt, bend=bend)

    radius = random.uniform(*kind.centre) * length
    disk = _vary(random, ((222, 176, 48), (84, 60, 44), (168, 176, 70))[random.integers(3)], 16)
    _disk(brush, centre, radius, _mix(disk, (30, 20, 10), 0.4), tilt)
    _disk(brush, centre, 0.85 * radius, disk, tilt)
    for _ in range(24):
        angle, out = random.uniform(0, 2 * math.pi), math.sqrt(random.uniform(0, 0.7)) * radius
        dot = (centre[0] + out * math.cos(angle), centre[1] + tilt * out * math.sin(angle))
        _disk(brush, dot, 0.1 * radius, _mix(disk, (255, 244, 200), random.uniform(0, 0.6)), tilt)


def _add_noise(random: Generator, image: Image.Image) -> Image.Image:
    """The image with another brightness and with grain."""
    pixels = np.asarray(image).astype(np.int32)
    pixels = pixels * random.integers(70, 116) // 100
    grain = int(random.integers(2, 18))
    pixels += random.integers(-grain, grain + 1, pixels.shape, dtype=np.int32)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _shape(
    brush: ImageDraw.ImageDraw,
    outline: Sequence[Point],
    base: Point,
    length: float,
    angle: float,
    *,
    colour: Colour,
    tilt: float = 1,
    bend: float = 0,
) -> None:
    """Draw a petal or leaf from `base` in the direction of `angle` (radians)."""
    both_sides = [*outline, *((along, -half) for along, half in reversed(outline))]
    cosine, sine = math.cos(angle), math.sin(angle)
    corners = []
    for along, across in _cut_corners(both_sides):
        x, y = length * along, length * (across + bend * along * along)
        corners.append((base[0] + x * cosine - y * sine, base[1] + tilt * (x * sine + y * cosine)))
    brush.polygon(_round_points(corners), fill=colour)


def _cut_corners(corners: Sequence[Point]) -> Sequence[Point]:
    """A closed outline with its corners cut three times (Chaikin, 1974): nearly a quadratic curve."""
    for _ in range(3):
        cut = []
        for (x, y), (next_x, next_y) in zip(corners, [*corners[1:], corners[0]], strict=True):
            cut += [(0.75 * x + 0.25 * next_x, 0.75 * y + 0.25 * next_y)]
            cut += [(0.25 * x + 0.75 * next_x, 0.25 * y + 0.75 * next_y)]
        corners = cut
    return corners


def _disk(brush: ImageDraw.ImageDraw, centre: Point, radius: float, colour: Colour, tilt: float = 1) -> None:
    """Draw a filled ellipse; `tilt` is its height per width."""
    corners = [(centre[0] - radius, centre[1] - tilt * radius), (centre[0] + radius, centre[1] + tilt * radius)]
    brush.ellipse(_round_points(corners), fill=colour)


def _round_points(points: Sequence[Point]) -> list[tuple[int, int]]:
    """Integer coordinates: the last bits of a sine may differ between machines, and must not change a pixel."""
    return [(round(x), round(y)) for x, y in points]


def _vary(random: Generator, colour: Colour, max_change: int) -> Colour:
    """A random colour near `colour`: each channel differs by at most `max_change`."""
    red, green, blue = np.clip(np.array(colour) + random.integers(-max_change, max_change + 1, 3), 0, 255).tolist()
    return red, green, blue


def _mix(colour: Colour, other: Colour, share: float) -> Colour:
    """`colour` mixed with a share of `other`."""
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(colour, other, strict=True))
    return red, green, blue
