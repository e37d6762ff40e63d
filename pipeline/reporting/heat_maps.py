"""Heat maps beside the mistakes: which places of a photo speak for the wrong class; a frame around what the model sees.

The maps are computed as `predict --heatmap` computes them, on the CPU, in fp32. The stage sets the variables of
train.arithmetic: portable before. So they too are the same bytes on every x86-64 CPU with AVX2 and FMA.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.config.params import Params
from pipeline.data import images
from pipeline.dataset import squares
from pipeline.loader import center
from pipeline.models.description import Description, View
from pipeline.reporting import charts, thumbnails
from pipeline.reporting.gallery import NO_HEAT_MAPS, HeatMaps
from pipeline.reporting.outcome import Answer
from pipeline.reporting.thumbnails import Thumbnail
from pipeline.sources.originals import Originals


def heat_maps(config: Params, description: Description, originals: Originals, answers: Sequence[Answer]) -> HeatMaps:
    """The maps of the classes that these answers give, or the reason why there are none.

    Raises UserError if the model is damaged, or if a file is not the one that `split` saw.
    """
    if not answers:
        return NO_HEAT_MAPS
    import torch  # takes seconds

    from pipeline.evaluation import heatmap
    from pipeline.evaluation.photos import LoadedImage
    from pipeline.learning import determinism, inference
    from pipeline.learning.world import World
    from pipeline.models import exported

    determinism.make_deterministic(config.train.threads, deterministic=True)
    model, pictures = exported.load(Path(config.paths.models)), {}
    view, world = model.view, World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))
    for answer in answers:
        path, sha256 = originals.file(answer.path)
        square = images.square_and_size(path, view.packed_size, grey=view.grey, sha256=sha256, fit=view.fit)
        image = LoadedImage(path, *square)
        try:
            _, maps = heatmap.explain(
                description.model, model.net, partial(inference.image_logits, model, *square, world)
            )
        except heatmap.NoMaps as error:
            return HeatMaps({}, str(error))
        picture = heatmap.picture(image, view, maps[answer.prediction])
        pictures[answer.path] = thumbnails.encode(picture, picture.size)
    return HeatMaps(pictures)


def frame(view: View, picture: Thumbnail) -> str:
    """The outline of what the model sees of a picture, in its pixels, for the attribute `d` of a path."""
    size = np.array([picture.width, picture.height])
    proportions = np.array([squares.proportions(view.fit, (picture.width, picture.height))], np.int32)
    (box,) = center.eval_boxes(proportions, view.packed_size, view.resize, view.crop)
    square = {"crop": size.min(), "pad": size.max()}.get(view.fit, size)  # the sides of what is packed
    corners = (size - square) / 2 + square * box.reshape(2, 2) / (view.packed_size * center.GRID)
    (left, top), (right, bottom) = np.clip(corners, 0, size).tolist()
    return f"{charts.route([(left, top), (right, top), (right, bottom), (left, bottom)])}z"
