"""Which photos should be labelled next: those that the model is unsure of, and that differ from each other.

Like classify.py, it imports no library at its top.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.answers import own_images
from pipeline.answers.answer import Answer
from pipeline.config.params import Params
from pipeline.dataset.split_table import SPLITS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FARTHEST = 2.0  # more than the distance of any two lists of probabilities
DIGITS = 6  # of a score: more could differ between two CPUs


def to_label(answers: Iterable[Answer], number: int, config: Params) -> list[Answer]:
    """So many answers, as `choose` orders their images; each has its two most likely classes only.

    Images that are in split.csv have a label. They are left out, and counted on stderr.
    """
    import numpy as np

    kept = [
        (replace(one, probabilities=one.most_likely(2)), np.array([*one.probabilities.values()])) for one in answers
    ]
    labelled = own_images.known([one.file for one, _ in kept], SPLITS, config)
    if count := sum(one.file in labelled for one, _ in kept):
        print(
            f"predict: {count:,} of {len(kept):,} images are left out: {config.paths.split} has them", file=sys.stderr
        )
    others = sorted((each for each in kept if each[0].file not in labelled), key=lambda each: each[0].path)
    return [others[place][0] for place in choose(np.array([row for _, row in others]), number)] if others else []


def choose(probabilities: "NDArray[np.float64]", number: int) -> list[int]:
    """The rows of so many images, from their probabilities [n, classes]. The image to label first is at the front.

    The next image has the highest product of two numbers: 1 minus the difference of its two highest probabilities, and
    the Euclidean distance of its probabilities from those of the nearest chosen image. Of a photo and its near copies,
    only one has a high product. Of equal products the first row is chosen.
    """
    import numpy as np

    chosen, two = list[int](), np.sort(probabilities, axis=1)[:, -2:]
    doubt, nearest = 1 - (two[:, 1] - two[:, 0]), np.full(len(two), FARTHEST)
    while len(chosen) < min(number, len(two)):
        score = np.round(doubt * nearest, DIGITS)
        score[chosen] = -1
        chosen.append(int(score.argmax()))
        nearest = np.minimum(nearest, np.linalg.norm(probabilities - probabilities[chosen[-1]], axis=1))
    return chosen
