"""5. Seconds to a given accuracy on the whole validation split, from scratch: the median over several seeds.

    python -m benchmarks time_to_accuracy --device cuda --archive file:///…/flower_photos_240.tgz

From the start of the process, and from the first step, to the validation after the last epoch. A seed that does not
reach the target counts as a failure, whatever it reached before. Model, sizes and recipe stand in the report. (The
tutorial that this project grew from: ResNet-34, 30 epochs, 0.806 in 270 s on one GPU.)
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row


@dataclass(frozen=True)
class Form:
    images: int
    side: int  # of the drawn images
    packed_size: int  # of the packed ones
    seeds: int
    target: float  # accuracy
    train: dict[str, Any]


# The recipe of the GPU form is a first one: it was not tried on a GPU yet.
GPU = {
    "model": "resnet18", "precision": "bf16", "memory_format": "channels_last", "epochs": 40, "batch_size": 64,
    "crop": 160, "eval_crop": 224, "eval_resize": 256, "lr": 0.05, "warmup_epochs": 3,
}  # fmt: skip
CPU = {
    "model": "resnet18", "precision": "fp32", "epochs": 6, "batch_size": 16,
    "crop": 48, "eval_crop": 64, "eval_resize": 64, "crop_scale": [0.5, 1.0], "lr": 0.02, "warmup_epochs": 1,
}  # fmt: skip
FORMS = {
    "cuda": Form(3000, 240, 256, 5, 0.81, GPU),
    "cpu": Form(600, 64, 64, 3, 0.35, CPU),
    "tiny": Form(60, 48, 48, 1, 0.0, {**CPU, "epochs": 1}),
}


def run(folder: Path, seed: int, target: float) -> Row:
    """Train once with the seed."""
    workspace.set_params(folder, {"train": {"seed": seed}})
    command = (sys.executable, "-m", "pipeline.launch", "train")
    watch = measuring.watched(command, folder, workspace.environment(folder.parent))
    events = workspace.events(folder)
    first = min(time for tag, _, time in events if tag == "crops")  # shown after the first step
    last = max(time for tag, _, time in events if tag == "accuracy")
    workspace.forget_runs(folder)
    accuracy = json.loads((folder / "metrics/train.json").read_text())["val"]["accuracy"]
    return {
        "accuracy": accuracy,
        "reached": accuracy >= target,
        "from_start_s": last - watch.began,
        "from_first_step_s": last - first,
    }


def main() -> int:
    options = measuring.parser(__doc__, "time_to_accuracy").parse_args()
    form = FORMS[measuring.form(options)]
    with measuring.refusals("time_to_accuracy"), tempfile.TemporaryDirectory(prefix="accuracy-") as temporary:
        base = Path(temporary).resolve()
        photos = workspace.photos(options, base, form.images, form.side)
        recipe = {"target": form.target, "packed_size": form.packed_size, **form.train}
        report = Report("time_to_accuracy", options, photos=photos.words, sha256=photos.sha256, **recipe)
        training = {"train": {"device": options.device, **form.train}}
        packed_size = {"prepare": {"size": form.packed_size}}
        if missing := report.missing(f"seed {seed}" for seed in range(form.seeds)):
            workspace.prepared(base / "copy", workspace.ONE_PROCESS, packed_size, training, photos.params)
        for name in missing:
            report.add(name, run(base / "copy", int(name.removeprefix("seed ")), form.target))
        rows = list(report.rows.values())
        report.conclude(
            target=form.target,
            reached=f"{sum(row['reached'] for row in rows)} of {len(rows)}",
            from_start_s=median(row["from_start_s"] for row in rows),
            from_first_step_s=median(row["from_first_step_s"] for row in rows),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
