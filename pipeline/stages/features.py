"""Compute the features of every packed image once: one of the processes that `pipeline.running.launch` starts.

    perennial features       starts run.processes of it, as params.yaml says

Writes data/features/features.npy, float32 [images, d]: what the pretrained network gives its head for the view that
evaluation sees of each image. They depend on the packed images, the weights and the view alone, not on the split: other
folds, and other settings of the head, find them in DVC's run cache. Without `train.head: solved` the stage writes a
note. The features of each image stay in .dvc/tmp/features/, too. So a start after an interrupted one, or after photos
were added or left out, computes the new images alone.
"""

import math
import os
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.base import files
from pipeline.config.model_names import weights_file
from pipeline.config.params import Params
from pipeline.dataset import feature_file
from pipeline.dataset.feature_file import Features
from pipeline.learning import collectives, determinism, inference, loop
from pipeline.learning.choices import PRECISIONS
from pipeline.learning.precision import allow_tf32
from pipeline.loader import storage
from pipeline.loader.batches import MEMORY_FORMATS
from pipeline.models import exact, exported, network, pretrained
from pipeline.models.description import View
from pipeline.running import agreement, group, pixels, provenance, rendezvous
from pipeline.versioning import identity

KNOWN = files.TEMPORARY / "features"
BATCHES = 64  # after which their features are kept


def run(config: Params) -> None:
    """Run one process; the main process writes the files. Raises UserError as the checks do."""
    settings, size = config.train, config.evaluate.batch_size
    determinism.make_deterministic(settings.threads, settings.deterministic)
    world = rendezvous.world_of(os.environ, settings.device)
    meeting = rendezvous.connect_store(world, config.run.timeout_seconds)
    with agreement.compare_facts(meeting, world) as facts:
        data = pixels.open_for(config, world.local_rank == 0)
        weights = Path(config.paths.weights) / weights_file(settings.model)
        net = network.build(settings.model, len(data.classes), seed=0)
        pretrained.load_into(net, weights)
        hardware = provenance.hardware(world, settings.threads, settings.arithmetic)
        facts["let features see devices of one kind (CUDA_VISIBLE_DEVICES), then run again"] = hardware
    backbone = network.without_head(net, settings.model).to(
        world.device, memory_format=MEMORY_FORMATS[settings.memory_format]
    )  # type: ignore[call-overload]
    exact.check_device(backbone, settings.eval_crop, world.device)
    normalization = network.normalization(settings.model)
    compute = partial(loop.logits, backbone, precision=PRECISIONS["fp32"](world.device.type))
    allow_tf32(False)
    inputs, code = {"weights": files.sha256(weights)}, identity.code(("features",))
    folder = KNOWN / identity.digest(identity.parts(config, ("features",), inputs, code, hardware=hardware))
    with group.process_group(world, settings.backend, config.run.timeout_seconds, meeting):
        store, _ = storage.open_images(data, config.run, world.device)
        pairs = zip(store.hashes(data), data.sizes, strict=True)
        images = [digest.tobytes() + proportions.tobytes() for digest, proportions in pairs]
        known: Features = {}  # of the main process: another node may have another disk
        if world.is_main:
            files.remove_others(folder, "[0-9a-f]{64}")
            folder.mkdir(parents=True, exist_ok=True)
            known = feature_file.known(folder)
        unknown = [row for row, image in enumerate(images) if image not in known]
        missing = np.array(collectives.broadcast_object(unknown), np.int64)
        parts = [missing[start : start + BATCHES * size] for start in range(0, len(missing), BATCHES * size)]
        total = sum(math.ceil(len(part) / (size * world.size)) for part in parts)
        with inference.progress(backbone, "features", total, world):
            for part in parts:
                crops = exported.center_crops(View.from_params(config), data.sizes, part, normalization)
                features = inference.logits(compute, store, crops, size, world).numpy()
                if world.is_main:
                    names = [images[row] for row in part]
                    feature_file.keep(folder, names, features)
                    known |= zip(names, features, strict=True)
    if world.is_main:
        whole = np.stack([known[image] for image in images])
        with files.atomic_folder(Path(config.paths.features)) as target:
            np.save(target / feature_file.FILE, whole)
        files.remove_others(feature_file.keep(folder, images, whole), r"[0-9a-f]{64}[.]npy")
        before = f"; of an earlier start: {len(images) - len(missing):,}" if len(missing) < len(images) else ""
        print(f"features: {len(whole):,} images{before}; {whole.shape[1]:,} numbers each, in {config.paths.features}/")
