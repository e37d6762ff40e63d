"""Compute the features of every packed image once: one of the processes that `pipeline.running.launch` starts.

    perennial features       starts run.processes of it, as params.yaml says

Writes data/features/features.npy, float32 [images, d]: what the pretrained network gives its head for the view that
evaluation sees of each image. They depend on the packed images, the weights and the view alone, not on the split: other
folds, and other settings of the head, find them in DVC's run cache. Without `train.head: solved` the stage writes a
note. An interrupted start leaves parts in .dvc/tmp/features/, and the next one goes on after them.
"""

import math
import os
from argparse import Namespace
from pathlib import Path

import numpy as np

from pipeline.base import files
from pipeline.config.model_names import weights_file
from pipeline.config.params import Params
from pipeline.dataset import feature_file
from pipeline.learning import collectives, determinism, inference
from pipeline.learning.choices import PRECISIONS
from pipeline.learning.precision import allow_tf32
from pipeline.loader import storage
from pipeline.loader.batches import MEMORY_FORMATS
from pipeline.models import exact, exported, network, pretrained
from pipeline.models.description import View
from pipeline.running import agreement, frame, group, pixels, provenance, rendezvous
from pipeline.versioning import identity

PARTS = files.TEMPORARY / "features"
BATCHES = 64  # of a part


def run(config: Params) -> None:
    """Run one process; the main process writes the parts and the file. Raises UserError as the checks do."""
    settings, size = config.train, config.evaluate.batch_size
    determinism.make_deterministic(settings.threads, settings.deterministic)
    world = rendezvous.world_of(os.environ, settings.device)
    meeting = rendezvous.connect_store(world, config.run.timeout_seconds)
    with agreement.compare_facts(meeting, world) as facts:
        data = pixels.open_for(config, world.local_rank == 0)
        weights = Path(config.paths.weights) / weights_file(settings.model)
        net = network.build(settings.model, len(data.classes), seed=0)
        pretrained.load_into(net, weights)
        facts["let features see devices of one kind (CUDA_VISIBLE_DEVICES), then run again"] = provenance.hardware(
            world, settings.threads, settings.arithmetic
        )
    backbone = network.without_head(net, settings.model).to(
        world.device, memory_format=MEMORY_FORMATS[settings.memory_format]
    )  # type: ignore[call-overload]
    exact.check_device(backbone, settings.eval_crop, world.device)
    normalization = network.normalization(settings.model)
    precision = PRECISIONS["fp32"](world.device.type)
    allow_tf32(False)
    inputs = {"packed images": data.digest, "weights": files.sha256(weights)}
    folder = PARTS / identity.digest(identity.parts(config, ("features",), inputs, identity.code(("features",))))
    with group.process_group(world, settings.backend, config.run.timeout_seconds, meeting):
        store, _ = storage.open_images(data, config.run, world.device)
        rows = np.arange(len(data.labels))
        parts = np.split(rows, range(BATCHES * size, len(rows), BATCHES * size))
        missing = [number for number in range(len(parts)) if not (folder / f"{number}.npy").is_file()]
        collectives.barrier()  # every process has looked before the first new part is there
        if world.is_main:
            files.remove_others(folder, "[0-9a-f]{64}")
            folder.mkdir(parents=True, exist_ok=True)
        total = sum(math.ceil(len(parts[number]) / (size * world.size)) for number in missing)
        with inference.progress(backbone, "features", total, world):
            for number in missing:
                crops = exported.center_crops(View.from_params(config), data.sizes, parts[number], normalization)
                features = inference.logits(backbone, store, crops, size, world, precision)
                if world.is_main:
                    with files.atomic_file(folder / f"{number}.npy") as temporary, temporary.open("wb") as file:
                        np.save(file, features.numpy())
    if world.is_main:
        with files.atomic_folder(Path(config.paths.features)) as target:
            whole = np.concatenate([np.load(folder / f"{number}.npy") for number in range(len(parts))])
            np.save(target / feature_file.FILE, whole)
        files.remove(folder)
        print(f"features: {len(whole):,} images, {whole.shape[1]:,} numbers each, in {config.paths.features}/")


def main(_: Namespace) -> int:
    return group.run_process(lambda: frame.run_stage("features", run))
