"""Measure the trained model on the test pictures: one of the processes that `pipeline.launch` starts.

    python -m pipeline.launch evaluate       starts run.processes of it, as params.yaml says

Reads models/ and the packed test rows. Writes metrics/eval.json, metrics/{confusion,calibration,predictions}.csv and
reports/mistakes.png: the same bytes for every number of processes. Every test picture is counted once.
"""

import json
import os
import sys
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import nn

from pipeline import augment, files, inference, metrics, model, packed, report, stage
from pipeline.engine import world
from pipeline.engine.precision import PRECISIONS
from pipeline.engine.world import World
from pipeline.errors import Refusal
from pipeline.inference import View
from pipeline.packed import Packed
from pipeline.params import Params


@dataclass(frozen=True)
class Trained:
    """The versioned model: what lies in `paths.models`."""

    net: nn.Module
    classes: tuple[str, ...]
    view: View


def load(models: Path) -> Trained:
    """Load the versioned model, on the CPU. Raises Refusal if there is none, or if its files do not fit together."""
    description, weights = models / "model.json", models / "model.safetensors"
    for path in (description, weights):
        if not path.is_file():
            raise Refusal(f"{path}: not found; train a model (dvc repro) or fetch a shared one (dvc pull)")
    stored = json.loads(description.read_text(encoding="utf-8"))
    if (stored["mean"], stored["std"]) != (list(augment.MEAN), list(augment.STD)):
        raise Refusal(
            f"{description}: normalized with mean {stored['mean']} and std {stored['std']}; this code has "
            f"{list(augment.MEAN)} and {list(augment.STD)}; train again (dvc repro), or use the code that trained it"
        )
    net = model.build(stored["model"], len(stored["classes"]), seed=0)
    try:
        net.load_state_dict(safetensors.torch.load_file(weights))
    except (SafetensorError, RuntimeError):
        raise Refusal(
            f"{weights}: not the weights of the {stored['model']} with {len(stored['classes'])} classes that "
            f"{description} describes; restore both (dvc checkout) or train again (dvc repro)"
        ) from None
    return Trained(net, tuple(stored["classes"]), View(**stored["view"]))


def judge(
    trained: Trained,
    squares: NDArray[np.uint8],
    sizes: NDArray[np.int32],
    rows: NDArray[np.int64],
    *,
    batch_size: int,
    place: World,
) -> NDArray[np.float64]:
    """The log-probabilities [len(rows), classes] of the given rows (see `inference.logits`), on every process.

    Always in fp32, whatever the model was trained with: the figures belong to the weights that are stored, which are
    fp32, and to whoever uses them. Raises Refusal if one is not a number.
    """
    net, precision = trained.net.to(place.device), PRECISIONS["fp32"](place.device.type)
    logits = inference.logits(net, squares, sizes, rows, trained.view, batch_size, place, precision)
    found: NDArray[np.float64] = torch.log_softmax(logits.double(), 1).numpy()
    if not np.isfinite(found).all():
        raise Refusal("the model's answers are not finite numbers; train again with a lower train.lr (dvc repro)")
    return found


def refuse_strangers(config: Params, trained: Trained, data: Packed) -> None:
    """Raise Refusal if the model was not trained on pictures packed like these."""
    described, square = f"{config.paths.models}/model.json", data.images.shape[1]
    if trained.classes != data.classes:
        raise Refusal(
            f"{described}: its classes are {', '.join(trained.classes)}, those of {config.paths.split} are "
            f"{', '.join(data.classes)}; they do not belong together; train again (dvc repro)"
        )
    if trained.view.square != square:
        raise Refusal(
            f"{described}: made for squares of {trained.view.square} pixels, {config.paths.packed} has {square}; "
            f"they do not belong together; train again (dvc repro)"
        )


def mistakes(config: Params, data: Packed, rows: NDArray[np.int64], found: NDArray[np.float64]) -> None:
    """Draw the mistakes that the model was most sure about; of equally sure ones the first in split.csv."""
    labels, predictions, confidence = data.labels[rows], found.argmax(1), np.exp(found.max(1))
    wrong = np.flatnonzero(predictions != labels)
    shown = wrong[np.argsort(-confidence[wrong], stable=True)][: config.evaluate.mistakes]
    known = report.credits(Path(config.paths.images) / "LICENSE.txt")
    title = f"{len(wrong)} mistakes in {len(rows)} test pictures"
    if len(shown) < len(wrong):
        title += f", the {len(shown)} most confident"
    report.write(
        Path(config.paths.reports) / "mistakes.png",
        title,
        [
            report.Mistake(
                square=data.images[rows[i]],
                size=(int(data.sizes[rows[i], 0]), int(data.sizes[rows[i], 1])),
                path=data.paths[rows[i]],
                actual=data.classes[labels[i]],
                predicted=data.classes[predictions[i]],
                confidence=float(confidence[i]),
                credit=known.get(data.paths[rows[i]], report.NO_CREDIT),
            )
            for i in shown
        ],
    )


def write(config: Params, data: Packed, rows: NDArray[np.int64], found: NDArray[np.float64]) -> dict[str, Any]:
    """Write the stage's outputs from the log-probabilities [len(rows), classes]; returns what is in eval.json."""
    folder, classes, labels = Path(config.paths.metrics), data.classes, data.labels[rows]
    figures = metrics.summary(found, labels, classes, config.evaluate.bins)
    files.write_json(folder / "eval.json", figures)
    pairs = [(classes[label], classes[guess]) for label, guess in zip(labels, found.argmax(1), strict=True)]
    # A row a picture: DVC's template `confusion` counts the rows of each pair itself.
    files.write_csv(folder / "confusion.csv", ("actual", "predicted"), pairs)
    files.write_csv(
        folder / "calibration.csv",
        ("low", "high", "count", "confidence", "accuracy"),
        map(astuple, metrics.calibration(found, labels, config.evaluate.bins)),
    )
    files.write_csv(
        folder / "predictions.csv",
        ("path", "label", "prediction", *(f"p_{name}" for name in classes)),
        (
            (data.paths[row], *pair, *probabilities)
            for row, pair, probabilities in zip(rows, pairs, np.exp(found).tolist(), strict=True)
        ),
    )
    mistakes(config, data, rows, found)
    return figures


def table(figures: dict[str, Any]) -> str:
    """The figures of eval.json as a table to be read."""
    interval, by_class = figures["interval"], figures["per_class"]
    width = max(len(name) for name in [*by_class, "class"])
    return "\n".join(
        [
            f"{'class':{width}}  precision  recall     f1  pictures",
            *(
                f"{name:{width}}  {row['precision']:9.3f}  {row['recall']:6.3f}  {row['f1']:5.3f}  {row['support']:8d}"
                for name, row in by_class.items()
            ),
            f"accuracy {figures['accuracy']:.3f} (95 %: {interval['low']:.3f} to {interval['high']:.3f}), "
            f"balanced {figures['balanced_accuracy']:.3f}, macro F1 {figures['macro_f1']:.3f}, "
            f"nll {figures['nll']:.3f}, ece {figures['ece']:.3f}, {figures['pictures']} test pictures",
        ]
    )


def run(config: Params) -> None:
    """Be one process of the evaluation."""
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    rows = data.rows("test")
    if len(rows) == 0:
        raise Refusal(f"{config.paths.split}: no test picture; raise split.fractions.test, then dvc repro")
    world.fix_arithmetic(config.train.threads, config.train.deterministic)
    trained = load(Path(config.paths.models))
    refuse_strangers(config, trained, data)
    place = world.from_env(os.environ, config.train.device)
    with world.joined(place, config.run.timeout_seconds):
        found = judge(trained, data.images, data.sizes, rows, batch_size=config.evaluate.batch_size, place=place)
    if place.first:
        print(table(write(config, data, rows, found)))


def main() -> int:
    return stage.main("evaluate", run)


if __name__ == "__main__":
    sys.exit(main())
