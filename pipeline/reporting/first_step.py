"""The images of the first training step, as the model gets them: cut, mirrored, coloured and mixed as the settings ask.

The code of the training computes them from the packed images, on the CPU. So they are the same bytes everywhere.
"""

from pathlib import Path

from pipeline.config.params import STREAM, Params
from pipeline.dataset import packed
from pipeline.reporting import thumbnails
from pipeline.reporting.thumbnails import Thumbnail

COUNT = 8


def pictures(config: Params) -> list[Thumbnail]:
    """The first COUNT of them; none for a training without steps. Raises UserError if the packed images are damaged."""
    if not config.train.has_steps:
        return []
    import torch  # takes seconds

    from pipeline.loader import storage
    from pipeline.loader.batches import train_batches
    from pipeline.loader.sampler import Share
    from pipeline.models import network

    cpu = torch.device("cpu")
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    # Where the training kept all images, such as a GPU, decides nothing, and there may be no room for them here.
    residency = STREAM if config.run.residency == STREAM else "disk"
    store, _ = storage.open_images(data, config.run.model_copy(update={"residency": residency}), cpu)
    normalization = network.normalization(config.train.model)
    dataset, share = storage.Dataset(data, store, normalization), Share(range(1), 1)
    images = next(train_batches(dataset, config.train, share, 0)).images[:COUNT]
    mean, scale = (constant[:, None, None] for constant in normalization.on(cpu))
    pixels = (images / scale + mean).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
    return [thumbnails.of_pixels(image) for image in pixels]
