"""Suspicious images are listed with their measures, as cleanvision finds them, and are never left out."""

import io
import math
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps

from pipeline.base import files
from pipeline.config import params
from pipeline.data import appearance, corrections, images, suspects
from pipeline.data.appearance import Appearance
from pipeline.data.images import ImageInfo
from pipeline.dataset.split_table import ImageRow
from pipeline.stages import split
from tests.conftest import on_cpu
from tests.helpers.datasets import noise_image, put

OURS = {  # cleanvision's name of an issue → ours
    "dark": "dark", "light": "bright", "blurry": "blurred", "low_information": "low_information",
    "odd_aspect_ratio": "odd_aspect", "odd_size": "odd_size", "grayscale": "grey",
}  # fmt: skip


def appearance_of(image: Image.Image) -> Appearance:
    return appearance.measure_appearance(image, image.convert("L"))


def inspect(path: Path) -> ImageInfo:
    info = images.inspect_image(path, 1, 10**8)
    assert not info.reason
    return info


def issues(infos: Mapping[str, ImageInfo]) -> dict[str, set[str]]:
    """Path → the issues of its image."""
    images = [ImageRow(path, width=info.width, height=info.height) for path, info in infos.items()]
    rows = suspects.find(images, [info.look for info in infos.values()])
    return {path: {row.issue for row in rows if row.path == path} for path in infos}


def photo(seed: int = 0, width: int = 200, height: int = 150) -> Image.Image:
    """A colourful image with edges of all sizes."""
    noise = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (15, 20, 3), np.uint8))
    return noise.resize((width, height), Image.Resampling.BILINEAR).filter(ImageFilter.UnsharpMask(2, 300))


def scale(image: Image.Image, factor: float, offset: float = 0) -> Image.Image:
    return image.point(lambda value: value * factor + offset)


def half_a_jpeg() -> Image.Image:
    """The first half of a file with the marker of its end, as a turned image: libjpeg gives no error."""
    content = io.BytesIO()
    photo().save(content, "JPEG")
    half = content.getvalue()[: len(content.getvalue()) // 2]
    return Image.open(io.BytesIO(half + b"\xff\xd9")).transpose(Image.Transpose.ROTATE_90)


IMAGES: dict[str, Callable[[], Image.Image]] = {
    "dark": lambda: scale(photo(), 0.2),
    "bright": lambda: scale(photo(), 0.03, 247),
    "blurred": lambda: photo().filter(ImageFilter.GaussianBlur(5)),
    "low_information": lambda: ImageOps.posterize(photo(), 1),
    "grey": lambda: photo().convert("L").convert("RGB"),
    "odd_aspect": lambda: photo(0, 300, 90),
    "odd_size": lambda: photo(0, 1600, 1200),
    "missing_part": half_a_jpeg,
}


@pytest.mark.parametrize("issue", IMAGES)
def test_each_issue_is_found(issue: str, tmp_path: Path) -> None:
    """One image among ten usual ones; the others have no issue, and its row says by how much the limit is passed."""
    for number in range(10):
        photo(number + 1).save(tmp_path / f"{number}.png")
    IMAGES[issue]().save(tmp_path / "odd.png")
    by_path = issues({path.name: inspect(path) for path in sorted(tmp_path.iterdir())})
    assert issue in by_path.pop("odd.png")
    assert not any(by_path.values())


def test_of_an_animation_the_first_image_is_measured(tmp_path: Path) -> None:
    """And of 16-bit grey the image that uses its own range: 12-bit data is not dark."""
    usual = photo()
    usual.save(tmp_path / "x.png", save_all=True, append_images=[scale(usual, 0.1)])
    assert inspect(tmp_path / "x.png").look == appearance_of(usual)
    values = np.asarray(usual.convert("L")).astype(np.uint16) * 16
    Image.fromarray(values).save(tmp_path / "12 bits.png")
    look = inspect(tmp_path / "12 bits.png").look
    assert look.brightest > suspects.DARK
    assert look.colour == 0


@pytest.mark.parametrize(
    ("colours", "found"),
    [
        *(([0] * grey + [200] * (10 - grey), found) for grey, found in zip((1, 4, 5, 10), (1, 4, 0, 0), strict=True)),
        ([7, 8, 200, 200, 200], 1),
    ],
)
def test_grey_images_are_suspicious_only_among_colour_images(colours: list[int], found: int) -> None:
    """A set of scans is grey. Where half of the images or more have colour, a grey one is named."""
    by_path = issues({f"{n}": ImageInfo("", 9, 9, look=look(colour=colour)) for n, colour in enumerate(colours)})
    assert sum("grey" in of for of in by_path.values()) == found


def test_where_most_sizes_are_equal_a_little_more_is_not_odd() -> None:
    """Without a range between the quartiles, a size counts as odd from 30 % above or below the usual one. A row has the
    limit that its value passes, with three digits after the point.
    """
    sides = [*[100] * 40, 60, 69, 70, 99, 101, 130, 131, 200]
    images = [ImageRow(f"{side}", width=side, height=side) for side in sides]
    rows = suspects.find(images, [look(brightest=0.8)] * len(sides))
    assert [(row.issue, row.value, row.limit) for row in rows] == [
        ("odd_size", 200.0, 130.0), ("odd_size", 60.0, 70.0), ("odd_size", 131.0, 130.0), ("odd_size", 69.0, 70.0),
    ]  # fmt: skip
    (dark,) = suspects.find([ImageRow("x", width=9, height=9)], [look(brightest=1 / 9)])
    assert (dark.value, dark.limit) == (0.111, 0.32)


def fine_noise(side: int) -> Image.Image:
    """Each pixel has its own colour."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8))


@pytest.mark.parametrize("image", [noise_image(3, appearance.SMALL), fine_noise(appearance.SMALL)])
def test_the_measures_follow_their_definitions(image: Image.Image) -> None:
    """Of an image that needs no sampling and no reduction, against plain formulas on its pixels."""
    look, pixels = appearance_of(image), np.asarray(image).astype(float)
    bright = np.sort(np.sqrt(pixels**2 @ [0.241, 0.691, 0.068]).ravel() / 255)
    assert look.darkest == pytest.approx(bright[math.ceil(0.05 * bright.size) - 1])
    assert look.brightest == pytest.approx(bright[math.ceil(0.99 * bright.size) - 1])
    assert look.colour == np.percentile(np.ptp(pixels, axis=2), 99, method="inverted_cdf")
    assert look.edges == pytest.approx(np.asarray(image.convert("L").filter(ImageFilter.FIND_EDGES)).std())
    assert look.evenness == pytest.approx(np.std(image.convert("L").histogram()))
    assert look.entropy == pytest.approx(image.entropy(), abs=1e-5)


# ---- the table, and what is printed ----


def look(**measures: Any) -> Appearance:
    usual = {"darkest": 0.1, "brightest": 0.9, "entropy": 8.0, "colour": 99, "edges": 99.0}
    return Appearance(**usual | measures)


def test_the_worst_comes_first() -> None:
    """Issue by issue; of equal values the smaller path. An image has a row for each of its issues."""
    looks: dict[str, dict[str, Any]] = {
        "d": {"edges": 30.0}, "b": {"edges": 33.0}, "c": {"edges": 20.0, "entropy": 1.0}, "a": {"edges": 33.0},
        "plain": {"edges": 20.0, "evenness": 99.0}, "ok": {},
    }  # fmt: skip
    images = [ImageRow(path, width=100, height=100) for path in looks]
    rows = suspects.find(images, [look(**measures) for measures in looks.values()])
    assert [(row.issue, row.path, row.value) for row in rows] == [
        ("blurred", "c", 20.0), ("blurred", "d", 30.0), ("blurred", "a", 33.0), ("blurred", "b", 33.0),
        ("low_information", "c", 1.0),
    ]  # fmt: skip


def test_split_lists_and_counts_them_and_leaves_none_out(
    here: Path, raw: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """suspects.csv, findings.csv and the lines on the terminal agree; the same bytes with another number of threads."""
    top = here / "data/images"
    for number in range(16):
        put(top / ("cat", "dog")[number % 2] / f"{number}.png", number, side=40)
    scale(photo(3), 0.2).save(top / "cat/night, new moon.png")
    scale(photo(4), 0.25).save(top / "dog/night.png")
    shutil.copy(top / "dog/night.png", top / "dog/copy.png")
    half_a_jpeg().save(top / "dog/half.png")
    corrections.FILE.write_text(corrections.EMPTY)
    tables = []
    for workers in (1, 3):
        split.run(params.parse(on_cpu(raw, split__min_side=16, run__workers=workers)))
        tables.append(Path("metrics/suspects.csv").read_bytes())
    assert tables[0] == tables[1]
    rows = suspects.read(Path("metrics/suspects.csv"))
    assert [row.path for row in rows if row.issue == "missing_part"] == ["dog/half.png"]
    dark = [row for row in rows if row.issue == "dark"]
    assert [(row.path, row.label) for row in dark] == [("cat/night, new moon.png", "cat"), ("dog/copy.png", "dog")]
    by_path = {row["path"]: row for row in files.read_csv(Path("data/split.csv"))}
    assert all(by_path[row.path]["split"] == row.split != "" for row in rows)
    findings = {row["finding"]: int(row["number"]) for row in files.read_csv(Path("metrics/findings.csv"))}
    for issue in suspects.ISSUES:
        assert findings[f"suspects.{issue}"] == sum(row.issue == issue for row in rows)
    stdout = capsys.readouterr().out
    assert "2 dark (first: cat/night, new moon.png)\n" in stdout
    assert "data/corrections.csv" in stdout


# ---- cleanvision ----


@pytest.mark.nightly(
    "it imports another library for seconds; test_the_measures_follow_their_definitions has its formulas"
)
def test_cleanvision_names_the_same_photos(photos: Path) -> None:
    """The same blurred ones and odd shape. Only we name grey ones saved as colour; only it, sizes 30 % from most."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own dependencies
        from cleanvision import Imagelab

        lab = Imagelab(data_path=str(photos), verbose=False)
        lab.find_issues({name: {} for name in OURS}, n_jobs=1, verbose=False)
    by_path = issues({str(path): inspect(path) for path in sorted(photos.glob("*/*.jpg"))})
    ours = {name: {path for path, names in by_path.items() if name in names} for name in OURS.values()}
    theirs = {name: set(lab.issues.index[lab.issues[f"is_{issue}_issue"]]) for issue, name in OURS.items()}
    assert [len(theirs[name]) for name in ("blurred", "odd_aspect", "odd_size")] == [2, 1, 4]
    assert {name for name in theirs if theirs[name] != ours[name]} == {"grey", "odd_size"}
    assert (len(theirs["grey"]), len(ours["grey"]), len(ours["odd_size"])) == (0, 4, 1)
    assert ours["odd_size"] <= theirs["odd_size"]
