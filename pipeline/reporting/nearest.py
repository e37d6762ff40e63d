"""The training photos beside a mistake: those whose features have the direction nearest to that of its features.

If the label of the mistake is wrong, most of them have the class of the answer. Features become whole numbers, whose
products float64 adds exactly in any order. So the same features give the same photos on every CPU.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.dataset import feature_file, split_table
from pipeline.dataset.split_table import ImageRow

COUNT = 3  # photos beside a mistake
LEVELS = 2**15  # the largest whole number: a sum of 2**22 squares is below 2**53, up to which float64 is exact
AT_ONCE = 4096  # images whose features are in memory as float64


def photos(folder: Path, rows: Sequence[ImageRow], paths: Sequence[str]) -> dict[str, list[ImageRow]]:
    """Path of a packed image → the COUNT nearest training photos, the nearest first; equally near: by path.

    `folder`: of the features; `rows`: of split.csv. Raises UserError if the features are damaged.
    """
    packed = [row for row in rows if split_table.is_packed(row.reason)]
    numbers = {row.path: number for number, row in enumerate(packed)}
    train = sorted(row.path for row in packed if row.split == "train")
    features = feature_file.read(folder, len(packed))
    found = nearest(features, [numbers[path] for path in paths], [numbers[path] for path in train])
    return {path: [packed[number] for number in some] for path, some in zip(paths, found.tolist(), strict=True)}


def nearest(features: NDArray[np.float32], of: Sequence[int], among: Sequence[int]) -> NDArray[np.int64]:
    """The rows [of, COUNT] of `among` that are nearest to each row of `of`; equally near: in the order of `among`."""
    targets, others = _directions(features[np.array(of, np.int64)]), np.array(among, np.int64)
    parts = [others[start : start + AT_ONCE] for start in range(0, len(others), AT_ONCE)]
    products = np.concatenate([targets @ _directions(features[part]).T for part in parts], axis=1)
    found: NDArray[np.int64] = others[np.argsort(-products, axis=1, kind="stable")[:, :COUNT]]
    return found


def _directions(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Whole numbers in proportion to the features [n, d], with a length of LEVELS. Features that are all 0 stay so.

    The first rounding makes the sum of squares exact. Every other operation is a single one, defined by IEEE 754.
    """
    largest = np.abs(features).max(1, keepdims=True).astype(np.float64)
    whole = np.rint(features / np.where(largest, largest, 1) * LEVELS)
    length = np.sqrt((whole**2).sum(1, keepdims=True))
    scaled: NDArray[np.float64] = np.rint(whole / np.maximum(length, 1) * LEVELS)
    return scaled
