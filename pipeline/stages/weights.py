"""Stage `weights`: pretrained weights for train.model, or a note that none are asked for.

    perennial weights       writes into data/weights: <train.model>.safetensors, or none.txt; code of one's own

It is a stage of its own, so that another model does not bring the images again. A downloaded file is kept, so the stage
runs again without a network.
"""

from pathlib import Path

from pipeline.base import files
from pipeline.config.model_names import EXACT_MODELS, OWN, PACKAGED, source_model, weights_file
from pipeline.config.params import Params
from pipeline.running import frame
from pipeline.sources import fetch


def run(config: Params) -> None:
    """Fill `paths.weights`. Raises UserError if the weights cannot be had or read."""
    model, choice = config.train.model, config.train.weights
    frame.check_model(config.train)
    with files.atomic_folder(Path(config.paths.weights)) as folder:
        if parts := OWN.fullmatch(model):
            (folder / f"mine-{parts[1]}").write_bytes(Path(config.paths.mine, parts[1]).read_bytes())
        if choice == "none":  # DVC warns of an empty folder with every command
            files.write_text(folder / "none.txt", "No pretrained weights are asked for (train.weights: none).\n")
            print("weights: none are asked for; the model starts from random weights")
            return
        from pipeline.models import pretrained  # imports torch, which takes seconds

        names: list[str] = []
        if choice == "imagenet" and source_model(model) in PACKAGED:
            source, names = pretrained.packaged_weights(source_model(model))
        elif choice == "imagenet":
            source = fetch.obtain_weights(*pretrained.published_weights(model), Path(config.paths.archives))
        else:
            source = Path(choice)
        file = folder / weights_file(model)
        for note in pretrained.convert(source, file, source_model(model), names):
            print(f"weights: {note}")
        if model in EXACT_MODELS:
            pretrained.quantize(file, model)
    origin = source.name if choice == "imagenet" else choice
    print(f"weights: those of {model} in {config.paths.weights}, from {origin}")
