"""Grey of 16 bits becomes 8 bits as prepare.grey says. What `split` writes does not depend on prepare.grey."""

from collections.abc import Sequence
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from pipeline.config.params import Grey, Prepare
from pipeline.data import grey, images
from pipeline.dataset import packed, split_table
from pipeline.evaluation import photos
from pipeline.models.description import View
from pipeline.sources.originals import Originals
from pipeline.stages import prepare
from tests.helpers.datasets import do_split, two_classes

GREYS: tuple[Grey, ...] = ("full", "minmax", "percentile")


def save(path: Path, values: NDArray[np.uint16], **options: Any) -> Path:
    """A file of 16-bit grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path, **options)
    return path


def squares(path: Path) -> dict[Grey, NDArray[np.uint8]]:
    """The grey values of an image at its own size, as each choice of prepare.grey packs it."""
    values = {}
    for choice in GREYS:
        with images.decode(path, grey=choice) as result:
            values[choice] = np.asarray(result.image)[..., 0]
            assert (np.asarray(result.image) == values[choice][..., None]).all()
    return values


def noise(seed: int, low: int, high: int, shape: tuple[int, int] = (40, 40)) -> NDArray[np.uint16]:
    """Coarse noise of 16-bit grey between two values, both of which occur."""
    coarse = np.random.default_rng(seed).integers(low, high + 1, (8, 8)).astype(np.uint16)
    coarse[0, 0], coarse[7, 7] = low, high
    return np.kron(coarse, np.ones((shape[0] // 8, shape[1] // 8), np.uint16))


def scale(values: Sequence[int], low: int, high: int) -> list[int]:
    """255 (v - low) / (high - low), rounded half up, from 0 to 255, in exact fractions."""
    scaled = [255 * Fraction(value - low, high - low) for value in values]
    return [floor(min(max(value, Fraction(0)), Fraction(255)) + Fraction(1, 2)) for value in scaled]


@given(st.integers(1, 1000), st.sampled_from([1, 9, 4095, 65535]), st.integers(0, 2**32 - 1), st.sampled_from(GREYS))
def test_every_choice_is_its_formula(number: int, most: int, seed: int, choice: Grey) -> None:
    """full: of 65535; minmax: darkest to lightest; percentile: the smallest values with 1 % and 99 % up to them."""
    values = np.random.default_rng(seed).integers(0, most, number, endpoint=True).tolist()
    ordered = sorted(values)
    ranges = {
        "percentile": (ordered[-(-number // 100) - 1], ordered[-(-99 * number // 100) - 1]),
        "minmax": (ordered[0], ordered[-1]),
        "full": (0, 65535),
    }
    wider = [ranges[name] for name in [*ranges][[*ranges].index(choice) :]]  # of an image of one value, the full scale
    low, high = next((low, high) for low, high in wider if low < high)
    table = grey.lookup_table(grey.count_values(np.array(values)), choice)
    assert table.dtype == np.uint8
    assert table[values].tolist() == scale(values, low, high)


@pytest.mark.parametrize(("options", "value"), [({}, 117), ({"transparency": 30000}, 255)])
def test_an_image_of_one_value_has_the_full_scale(tmp_path: Path, options: dict[str, int], value: int) -> None:
    """It has no range of its own, also if it is transparent as a whole."""
    path = save(tmp_path / "a.png", np.full((40, 40), 30000, np.uint16), **options)
    assert all((square == value).all() for square in squares(path).values())


def test_transparent_values_are_white_and_have_no_part_in_the_range(tmp_path: Path) -> None:
    """The transparent value of a PNG is white with every choice; the other values are scaled by their own range."""
    values = noise(0, 1000, 3000)
    values[16:24] = 7
    by_choice = squares(save(tmp_path / "a.png", values, transparency=7))
    assert all((square[16:24] == 255).all() for square in by_choice.values())
    assert by_choice["minmax"][values == 1000].max() == 0


def test_large_images_have_one_range(tmp_path: Path) -> None:
    """An image that is converted in several strips is scaled by the range of all of them."""
    values = np.arange(1000, dtype=np.uint16).repeat(1000).reshape(1000, 1000)
    assert values.size > 3 * images.STRIP
    square = squares(save(tmp_path / "a.tiff", values))["minmax"]
    assert (square == np.array(scale(range(1000), 0, 999))[:, None]).all()


def test_images_of_eight_bits_do_not_depend_on_it(tmp_path: Path) -> None:
    """Dark 8-bit grey and colour keep their values with every choice."""
    for mode in ("L", "RGB"):
        Image.fromarray(noise(0, 10, 40).astype(np.uint8)).convert(mode).save(tmp_path / "a.png")
        assert all((square == noise(0, 10, 40)).all() for square in squares(tmp_path / "a.png").values())


def inspect_image(path: Path) -> images.ImageInfo:
    return images.inspect_image(path, 8, 10**6)


def test_two_dark_images_are_told_apart(tmp_path: Path) -> None:
    """Images that differ only within one of the 256 levels of the full scale have other hashes of both kinds."""
    first, second = (inspect_image(save(tmp_path / f"{n}.png", noise(n, 300, 380))) for n in (1, 2))
    assert first.pixels != second.pixels
    assert (first.phash ^ second.phash).bit_count() > 8
    assert len({squares(tmp_path / f"{n}.png")["full"].tobytes() for n in (1, 2)}) == 1


def test_equal_values_are_equal_images_in_every_format(tmp_path: Path) -> None:
    """A PNG, a TIFF of either byte order, a PGM and a turned TIFF with the same 16-bit values have the same hashes."""
    values, exif = noise(0, 0, 65535, (40, 80)), Image.Exif()
    exif[0x0112] = 8
    infos = [inspect_image(save(tmp_path / name, values)) for name in ("a.png", "a.tiff", "a.pgm")]
    Image.frombytes("I;16B", (80, 40), values.astype(">u2").tobytes()).save(tmp_path / "big.tiff")
    save(tmp_path / "turned.tiff", np.rot90(values, -1).copy(), exif=exif)
    infos += [inspect_image(tmp_path / name) for name in ("big.tiff", "turned.tiff")]
    assert infos == [infos[0]] * 5
    assert (infos[0].width, infos[0].height) == (80, 40)


@pytest.mark.parametrize(("lightest", "is_dark"), [(8191, True), (8192, False)])
def test_a_lightest_value_below_an_eighth_is_dark(tmp_path: Path, lightest: int, is_dark: bool) -> None:
    """An image is dark if no value reaches an eighth of the full scale."""
    assert inspect_image(save(tmp_path / "a.png", noise(0, 0, lightest))).is_dark == is_dark


@pytest.mark.parametrize("choice", GREYS)
def test_prepare_and_predict_scale_alike(tmp_path: Path, choice: Grey) -> None:
    """The packed image and the one that predict gives to the model have the same bytes."""
    folder = two_classes(tmp_path / "images")
    path = save(folder / "cat/dark.png", noise(0, 0, 4095))
    rows, _ = do_split(folder)
    split_table.write(rows, tmp_path / "split.csv", tmp_path / "kept.csv")
    settings = Prepare(size=32, grey=choice)
    prepare.prepare(Originals(folder, {}), tmp_path / "kept.csv", tmp_path / "packed", settings, workers=2)
    data = packed.load(tmp_path / "packed", tmp_path / "split.csv")
    square = data.images[data.paths.index("cat/dark.png")]
    image = photos.load_image(path, View(packed_size=32, resize=32, crop=32, grey=choice), 10**6)
    assert (image.pixels == square).all()
    assert (square.max() > 200) == (choice != "full")
