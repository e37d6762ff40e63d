"""prepare.fit: what training, evaluation and prediction see of an image that is no square."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import ExifTags, Image

from pipeline.base import files
from pipeline.config import params
from pipeline.config.params import WHOLE, Fit, Prepare
from pipeline.data import corrections, images, split_report
from pipeline.dataset import packed, split_table
from pipeline.dataset.normalization import IMAGENET
from pipeline.evaluation import photos
from pipeline.loader import center
from pipeline.models.description import View
from pipeline.models.exported import center_crops
from pipeline.sources.originals import Originals
from pipeline.stages import prepare, split
from tests.conftest import on_cpu
from tests.helpers.datasets import decode
from tests.helpers.evaluations import CLASSES, draw

FITS: tuple[Fit, ...] = get_args(Fit)
SIZE = 40
SHAPES = {"tall": (30, 91), "wide": (200, 80), "square": (64, 64), "tiny": (3, 2), "line": (300, 1), "turned": (61, 20)}


def upright(name: str) -> Image.Image:
    """An image of noise, as it is upright."""
    width, height = SHAPES[name]
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of SHAPES, one of them turned by its EXIF, and the tables of the split."""
    folder = tmp_path_factory.mktemp("shapes")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    lines = []
    for name, size in sorted(SHAPES.items()):
        path = folder / "images/a" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = upright(name)
        if name == "turned":
            image.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
        else:
            image.save(path)
        lines.append((f"a/{name}.png", "a", "test", "", *size, "", "", ""))
    files.write_csv(folder / "split.csv", split_table.HEADER, lines)
    files.write_csv(folder / "kept.csv", split_table.PACKED_COLUMNS, [(line[0], *line[4:6]) for line in lines])
    return folder


def resize(image: Image.Image, width: int, height: int) -> NDArray[np.uint8]:
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def reference(image: Image.Image, fit: Fit) -> NDArray[np.uint8]:
    """The square of an upright image, put together in NumPy."""
    width, height = image.size
    if fit == "crop":
        short = min(width, height)
        left, top = (width - short) / 2, (height - short) / 2
        box = (left, top, left + short, top + short)
        return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BICUBIC, box))
    if fit == "pad":
        square = np.empty((SIZE, SIZE, 3), np.uint8)
        square[:] = [round(255 * value) for value in IMAGENET.mean]
        long = max(width, height)
        inner = resize(image, max(1, round(SIZE * width / long)), max(1, round(SIZE * height / long)))
        top, left = (SIZE - inner.shape[0]) // 2, (SIZE - inner.shape[1]) // 2
        square[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
        return square
    return resize(image, SIZE, SIZE)


@pytest.fixture(scope="module", params=FITS)
def squares_of(request: pytest.FixtureRequest, shapes: Path) -> packed.Packed:
    """These images, packed in each way."""
    folder = shapes / request.param
    prepare.prepare(
        Originals(shapes / "images", {}), shapes / "kept.csv", folder, Prepare(size=SIZE, fit=request.param), 2
    )
    return packed.load(folder, shapes / "split.csv")


def test_prepare_and_predict_see_the_same_square(shapes: Path, squares_of: packed.Packed) -> None:
    """Of images of every shape, and of one that EXIF turns: the bytes of the reference, and the same boxes."""
    data, fit = squares_of, squares_of.fit
    for row, path in enumerate(data.paths):
        image = photos.load_image(shapes / "images" / path, View(SIZE, SIZE, SIZE, "full", fit), 10**6)
        assert np.array_equal(data.images[row], reference(upright(Path(path).stem), fit))
        assert np.array_equal(image.pixels, data.images[row])
        assert image.size == tuple(data.sizes[row])
        assert (image.size == SHAPES[Path(path).stem]) == (fit == "none")


@pytest.mark.parametrize("fit", FITS)
def test_a_large_jpeg_keeps_four_times_the_scale(tmp_path: Path, fit: Fit) -> None:
    """It is decoded at a reduced scale, and the short side has still four times the square's."""
    noise = np.random.default_rng(3).integers(0, 256, (9, 12, 3), np.uint8)
    Image.fromarray(noise).resize((960, 640), Image.Resampling.BICUBIC).save(tmp_path / "a.jpg", quality=95)
    reduced = decode(tmp_path / "a.jpg", draft=4 * SIZE)
    assert 4 * SIZE <= min(reduced.size) < 640
    assert np.array_equal(images.square_and_size(tmp_path / "a.jpg", SIZE, fit=fit)[0], reference(reduced, fit))


def test_evaluation_sees_the_whole_square_or_the_centre(squares_of: packed.Packed) -> None:
    """All of it with squash and pad, whatever train.eval_resize is; else eval_crop of eval_resize of the short side."""
    data, fit = squares_of, squares_of.fit
    values = {"prepare.fit": fit, "prepare.size": SIZE, "train.eval_crop": 24, "train.eval_resize": 32}
    view = View.from_params(params.with_values(params.Params(), values))
    boxes = center_crops(view, data.sizes, data.rows("test"), IMAGENET).boxes
    full = SIZE * center.GRID
    edge = 0 if fit in WHOLE else full // 8
    sizes = np.array([SHAPES[Path(path).stem] for path in data.paths])
    shares = center.eval_boxes(sizes, SIZE, 32, 24) if fit == "none" else [[edge] * 2 + [full - edge] * 2] * len(SHAPES)
    assert np.array_equal(boxes, shares)


@pytest.mark.parametrize(
    ("fit", "losing", "is_said"),
    [("none", 2, True), ("none", 1, False), ("crop", 2, True), ("squash", 9, False), ("pad", 9, False)],
)
def test_many_images_that_are_no_squares_are_said(fit: Fit, losing: int, is_said: bool) -> None:
    """More than a tenth of them, each below 3 : 4; with the number."""
    line = split_report.unseen_parts(fit, [(299, 400)] * losing + [(300, 400)] * (10 - losing))
    assert line.startswith(f"{losing} of 10 images") if is_said else line == ""


def test_split_names_the_remedy_and_writes_the_same_bytes(
    here: Path, raw: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """prepare.fit decides only whether the line is printed."""
    random = np.random.default_rng(0)
    for number in range(12):
        draw(here / f"data/images/{CLASSES[number % 3]}/{number}.png", (80, 40), number % 3, random)
    corrections.FILE.write_text(corrections.EMPTY)
    has_line, tables = {}, {}
    for fit in FITS:
        split.run(params.parse(on_cpu(raw, prepare__fit=fit, split__phash_distance=0)))
        has_line[fit] = "12 of 12 images" in capsys.readouterr().out
        tables[fit] = {path: path.read_bytes() for path in sorted(here.rglob("*.csv"))}
    assert has_line == {"none": True, "squash": False, "crop": True, "pad": False}
    assert all(table == tables["none"] for table in tables.values())
