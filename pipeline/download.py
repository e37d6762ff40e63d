"""Stage `download`: images in class folders below paths.images, and pretrained weights in paths.weights.

    python -m pipeline.download

The images are unpacked from an archive, copied from the inbox, or drawn (`data.source`). The SHA-256 of an archive is
checked before it is unpacked. An output appears only when it is complete. A downloaded file is kept, so the stage runs
again without a network.
"""

import sys
from pathlib import Path

from pipeline import stage
from pipeline.base import files
from pipeline.config.model_names import weights_file
from pipeline.config.params import Params
from pipeline.data import archive, fetch, inbox, synthetic


def run(config: Params) -> None:
    bring_weights(config)
    folder = Path(config.paths.images)
    origin = bring_images(config, folder)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    print(f"download: {len(sizes):,} files, {sum(sizes):,} bytes in {config.paths.images}, from {origin}")


def bring_images(config: Params, images: Path) -> str:
    """Fill the folder `images` from `data.source`; where the images come from, for the user.

    Raises UserError if they cannot be had, and leaves an earlier folder as it is.
    """
    data = config.data
    if data.source == "archive":
        path = fetch.obtain_archive(data.url, data.sha256, Path(config.paths.archives))
        with files.atomic_folder(images) as folder:
            archive.unpack(path, folder, data.max_files, data.max_bytes)
        return data.url
    if data.source == "inbox":
        with files.atomic_folder(images) as folder:
            inbox.copy(Path(config.paths.inbox), folder)
        return config.paths.inbox
    drawn = data.synthetic
    with files.atomic_folder(images) as folder:
        synthetic.draw(folder, drawn.count, drawn.size, drawn.seed, stage.workers(config))
    return f"synthetic flowers (seed {drawn.seed})"


def bring_weights(config: Params) -> None:
    """Fill `paths.weights` with <train.model>.safetensors, or with none.txt if train.weights is none.

    Raises UserError if the weights cannot be had or read.
    """
    model, asked = config.train.model, config.train.weights
    with files.atomic_folder(Path(config.paths.weights)) as folder:
        if asked == "none":  # DVC warns of an empty folder with every command
            files.write_text(folder / "none.txt", "No pretrained weights are asked for (train.weights: none).\n")
            return
        from pipeline.models import pretrained  # imports torch, which takes seconds

        if asked == "imagenet":
            source = fetch.obtain_weights(*pretrained.published(model), Path(config.paths.archives))
        else:
            source = Path(asked)
        for note in pretrained.convert(source, folder / weights_file(model)):
            print(f"download: {note}")
    origin = source.name if asked == "imagenet" else asked
    print(f"download: weights of {model} in {config.paths.weights}, from {origin}")


def main() -> int:
    return stage.main("download", run)


if __name__ == "__main__":
    sys.exit(main())
