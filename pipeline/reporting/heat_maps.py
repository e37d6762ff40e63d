"""Heat maps beside the mistakes: which places of a photo speak for the wrong class.

They are computed as `predict --heatmap` computes them, on the CPU, in fp32. The stage sets the variables of
train.arithmetic: portable before. So they too are the same bytes on every x86-64 CPU with AVX2 and FMA.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pipeline.config.params import Params
from pipeline.data import images
from pipeline.models.description import Description
from pipeline.reporting import thumbnails
from pipeline.reporting.gallery import NO_HEAT_MAPS, HeatMaps
from pipeline.reporting.outcome import Answer
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
