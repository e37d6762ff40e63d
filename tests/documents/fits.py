"""The table of docs/data.md on prepare.fit, from the studies in results/fit and the sizes of their images.

python -m tests.documents.fits data/split.csv       writes results/fit/sizes.csv: how many used images have which size
"""

import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from pipeline.base import files
from pipeline.config import params
from pipeline.config.params import Fit, Params
from pipeline.dataset import split_table, squares
from pipeline.loader import center
from pipeline.models.description import View
from pipeline.studies import record
from tests.conftest import PROJECT
from tests.documents.tables import table

FITS: tuple[Fit, ...] = get_args(Fit)
BEFORE = """\
A row is a study of all folds of {images} photos of flower_photos, with the params of the recipe `mini`
([folds.md](folds.md#recipes-with-records)) and this `prepare.fit`: {crop} pixels, `train.eval_resize: {resize}`.
`perennial folds --recipe ../fit/pad` repeats a row and compares every byte; `none` is the recipe `mini` itself. The
shares of pixels are means over the images. With `none` and `crop`, evaluation sees less also because
`train.eval_crop` is below `train.eval_resize`. The intervals overlap: {images} images do not tell which fit is best."""
FOLDER, SIZES = Path("results/fit"), "sizes.csv"
STUDIES = {fit: record.RECIPES / "mini.json" if fit == "none" else FOLDER / f"{fit}.json" for fit in FITS}


def write_sizes(split_csv: Path, output: Path) -> None:
    """Count the sizes of the used images of a split.csv."""
    counts = Counter((int(row["width"]), int(row["height"])) for row in split_table.kept_rows(split_csv))
    files.write_csv(output, ("width", "height", "images"), [(*size, images) for size, images in sorted(counts.items())])


def read_sizes(path: Path) -> NDArray[np.int64]:
    """Width and height [n, 2] of each image."""
    rows = [[int(row[name]) for name in ("width", "height", "images")] for row in files.read_csv(path)]
    numbers = np.array(rows, np.int64)
    return np.repeat(numbers[:, :2], numbers[:, 2], axis=0)


def seen_shares(sizes: NDArray[np.int64], view: View) -> tuple[float, float]:
    """The mean shares of an image's pixels from which training takes crops, and that evaluation sees.

    `sizes`: width and height [n, 2].
    """
    packed_shares = sizes.min(1) / sizes.max(1) if view.fit == "crop" else np.ones(len(sizes))
    proportions = np.array(
        [squares.proportions(view.fit, (width, height)) for width, height in sizes.tolist()], np.int32
    )
    boxes = center.eval_boxes(proportions, view.packed_size, view.resize, view.crop)
    box_shares = (boxes[:, 2:] - boxes[:, :2]).prod(1) / (view.packed_size * center.GRID) ** 2
    return float(packed_shares.mean()), float((packed_shares * box_shares).mean())


def fits(project: Path = PROJECT) -> str:
    """A paragraph and a table with a row for each fit; empty until every study is there."""
    paths = {fit: project / study for fit, study in STUDIES.items()}
    if not all(path.is_file() for path in paths.values()):
        return ""
    sizes, rows = read_sizes(project / FOLDER / SIZES), []
    for fit, path in paths.items():
        study = record.read(path)
        view = View.from_params(params.with_values(Params(), study.params))
        if (view.fit, int(study.figures["images"])) != (fit, len(sizes)):
            raise ValueError(f"{path}: a study of {study.figures['images']:.0f} images with prepare.fit: {view.fit}")
        accuracy, low, high = (study.figures[f"accuracy{end}"] for end in ("", "_low", "_high"))
        shares = (f"{100 * share:.0f} %" for share in seen_shares(sizes, view))
        rows.append((f"`{fit}`", f"{accuracy:.4f} ({low:.4f} to {high:.4f})", *shares))
    titles = (
        "`prepare.fit` | accuracy (95 % interval) | pixels that training takes crops from | pixels that evaluation sees"
    )
    config = params.with_values(Params(), record.read(paths["none"]).params).train
    before = BEFORE.format(images=len(sizes), crop=config.eval_crop, resize=config.eval_resize).replace("\n", " ")
    return f"{before}\n\n{table(titles, rows)}"


if __name__ == "__main__":
    write_sizes(Path(sys.argv[1]), PROJECT / FOLDER / SIZES)
