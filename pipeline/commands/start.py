"""Write params that suit this machine and these photos into params.yaml, and say how long a run takes.

    perennial start                     shows the presets
    perennial start good                writes this one: quick, good, best, scratch, tutorial, modern, fast or apex
    perennial start good --photos /path/to/photos
    perennial start good --verbose      shows each changed setting and the parts of the time, too
    perennial start quick --photos torchvision/MNIST

The values of a preset follow from the machine and the number of images (planning/presets.py). The time follows from a
few batches on this machine (planning/estimate.py); it changes nothing in params.yaml.
"""

import difflib
import itertools
import shlex
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.base import linux
from pipeline.base.errors import Fault, UserError
from pipeline.base.text import did_you_mean
from pipeline.checks import machine, rules, validity
from pipeline.checks.machine import Machine
from pipeline.config import document, params
from pipeline.config.params import Data, Params, Split
from pipeline.planning import presets, survey
from pipeline.planning.presets import NAMES
from pipeline.planning.survey import Survey
from pipeline.studies import record

WITHOUT_PHOTOS = (
    "Nothing is changed, and no image is here yet. There are three ways to go on:",
    "  perennial start --photos /path/to/photos    your own photos: a folder with one folder per class in it",
    "  perennial start --photos torchvision/CIFAR10    a public data set (docs/data.md lists them)",
    "  make demo                                   the whole pipeline on drawn flowers, in about 3 minutes",
)
FEW_IMAGES = 100  # per class, a rule of thumb: below it, training from scratch often learns little
UNDO = f"git diff {params.FILE} shows what changed; git checkout {params.FILE} undoes all of it"


def source(config: Params, photos: str = "") -> dict[str, Any]:
    """The params that make a run read the folder `photos` where it is, or the public set torchvision/<name>.

    Empty: the inbox, if something is in it. Without photos in the inbox, or if the params name another source, they
    stay as they are. Raises UserError.
    """
    named = _source(config, photos)
    if named.get("data.source", config.data.source) in rules.GREY_SETS:
        return named | {"split.min_side": 28, "split.phash_distance": 0}
    if config.data.source in rules.GREY_SETS:
        return named | {"split.min_side": Split().min_side, "split.phash_distance": Split().phash_distance}
    return named


def _source(config: Params, photos: str) -> dict[str, Any]:
    """The params that name where the images are, if they change."""
    if photos.startswith("torchvision/"):
        return {"data.source": photos}
    if photos:
        named, project = Path(photos), Path.cwd()
        with suppress(RuntimeError):  # ~name of no user is a folder of this name
            named = named.expanduser()
        if not (folder := named.resolve()).is_dir():
            allowed = "the folder with your images, one folder per class in it"
            raise UserError(Fault("--photos", photos, "missing", "it is not a folder", allowed))
        inside = folder.is_relative_to(project) and folder != project
        return {"data.source": "folder", "paths.inbox": str(folder.relative_to(project) if inside else folder)}
    if config.data.source == "archive" and not survey.is_empty(Path(config.paths.inbox)):
        return {"data.source": "inbox"}
    return {}


@dataclass(frozen=True)
class Situation:
    """What there is: the params, the machine, and the images."""

    config: Params
    machine: Machine
    source: dict[str, Any]  # the params that name where the images are, if they change
    survey: Survey


def situation(config: Params, photos: str = "") -> Situation:
    """What there is. Raises UserError for a folder without images in it, or with a layout that `split` would refuse."""
    new = source(config, photos)
    return Situation(config, this_machine(), new, survey.survey(params.with_values(config, new)))


def this_machine() -> Machine:
    """The facts of this machine, with the cores that this process may use."""
    return replace(machine.read(), cores=linux.usable_cores())


def lines(now: Situation) -> Iterator[str]:
    """What there is: the machine and the images, one line each."""
    facts, photos, memory = now.machine, now.survey, linux.memory_bytes() / 2**30
    apex = f", Apex: {facts.apex}" if facts.cuda_devices else ""
    yield f"machine  cores: {facts.cores}, memory: {memory:.0f} GiB, GPUs: {facts.cuda_devices}{apex}"
    yield f"images   {f'{photos.images:,} in {photos.classes} classes, in ' if photos.images else ''}{photos.where}"
    yield from (f"note     {note}" for note in photos.notes)
    if has_small_class(photos):
        label, size = min(photos.sizes.items(), key=lambda item: item[1])
        yield f"note     {label!r:.40} has {size} images: a preset splits each class by itself (split.stratify)"


def too_few(config: Params, photos: Survey) -> list[str]:
    """A note if these params train from scratch on few images per class."""
    if config.train.weights != "none" or not 0 < photos.images < FEW_IMAGES * photos.classes:
        return []
    few = f"note     {photos.images / photos.classes:.0f} images per class: training from scratch may learn little;"
    return [few, "         with pretrained weights, which need no download: perennial start quick"]


def values(name: str, now: Situation) -> dict[str, Any]:
    """The params of a preset for these images, where the images are, and a stratified split for small classes."""
    training = now.survey.parts(now.config.split)["train"]
    stratified = {"split.stratify": True} if has_small_class(now.survey) else {}
    return now.source | stratified | presets.changes(name, now.machine, training)


def has_small_class(photos: Survey) -> bool:
    """Whether chance alone could leave a class with two or three test images: a split by hashes has them on average."""
    return bool(photos.cut.splits) and min(photos.sizes.values(), default=FEW_IMAGES) < FEW_IMAGES


def with_preset(name: str, now: Situation, new: dict[str, Any]) -> Params:
    """The params with the values of a preset. Raises UserError if other settings do not go with the preset."""
    config = params.with_values(now.config, new)
    if not presets.obstacle(name, now.machine) and (faults := validity.faults(config, now.machine)):
        value = f"other settings do not go with the preset {name}, so nothing is written"
        raise UserError(*faults, Fault(str(params.FILE), value, "pair", remedy=UNDO))
    return config


def write(config: Params, new: dict[str, Any], verbose: bool = False) -> None:
    """Write the values into params.yaml, and print how many lines change; with `verbose` the lines, too."""
    before = dict(document.leaves(config.model_dump(mode="json")))
    changes = [f"  {key:<22} {before[key]} → {value}" for key, value in new.items() if value != before[key]]
    if not changes:
        print(f"{params.FILE} has these values already.")
        return
    document.rewrite(params.FILE, new)
    print(f"{len(changes)} settings are changed in {params.FILE}.", *(changes if verbose else []), f"{UNDO}.", sep="\n")


def offer(now: Situation, verbose: bool = False) -> None:
    """Print the presets, each with the time of a run here; with `verbose` the model and the epochs, too."""
    from pipeline.planning import estimate

    photos = now.survey if now.survey.images else survey.EXAMPLE
    print("\nMeasuring how long a few batches take with each preset …")
    if photos is survey.EXAMPLE:
        print(f"No image is here yet. The times are for {photos.images:,} images in {photos.classes} classes, as")
        print(f"{photos.where} has, without the download and without split and prepare.")
    form = "{:<9}{:<22}{:<7}{:<7}{}" if verbose else "{0:<9}{3:<7}{4}"
    print(form.format("preset", "model", "epochs", "right", "a run takes here"), flush=True)
    for name in NAMES:
        new = values(name, now)
        epochs = "none" if new["train.freeze_backbone"] else new["train.epochs"]
        columns = new["train.model"].rpartition("/")[2], epochs, accuracy(name)
        reason, config = presets.obstacle(name, now.machine), with_preset(name, now, new)
        time = reason or estimate.describe_total(config, estimate.measure_parts(config, photos))
        print(form.format(name, *columns, time), flush=True)
    print("right: the share of flower_photos, each photo tested by a model that never saw it; –: not measured")


def accuracy(name: str) -> str:
    """The accuracy of a preset on all photos of flower_photos, from its record; a dash without one."""
    path = record.RECIPES / f"{name}-base.json"
    return f"{record.read(path).figures['accuracy']:.3f}" if path.is_file() else "–"


def next_lines(now: Situation, photos: str) -> tuple[str, ...]:
    """What a person can type after the presets were shown."""
    if not now.survey.images and now.config.data.url == Data().url:
        return WITHOUT_PHOTOS
    command = f"perennial start {presets.RECOMMENDED}{f' --photos {shlex.quote(photos)}' if photos else ''}"
    return (f"Nothing is changed. To take one: {command}",)


def start(preset: str, photos: str, verbose: bool = False) -> int:
    """Write a preset; if `preset` is empty, show all. Returns 0.

    Raises UserError for a preset that cannot run on this machine, and as `situation` and `with_preset` do.
    """
    now = situation(params.load(), photos)
    print(*lines(now), sep="\n", flush=True)
    if not preset:
        offer(now, verbose)
        print("", *next_lines(now, photos), sep="\n")
        return 0
    if preset not in (possible := presets.choices(now.machine)):
        raise UserError(Fault("preset", preset, "machine", presets.obstacle(preset, now.machine), ", ".join(possible)))
    new = values(preset, now)
    config = with_preset(preset, now, new)
    print(f"\npreset   {preset}")
    write(now.config, new, verbose)
    print(*(f"\n{line}" for line in too_few(config, now.survey)), sep="", end="")
    if reason := presets.obstacle(preset, now.machine):
        print(f"It {reason}: make image, then make image-repro.")
        return 0
    from pipeline.planning import estimate  # imports what decodes images, which takes a second

    print()
    for line in itertools.islice(estimate.report_lines(config, now.survey), None if verbose else 2):
        print(line, flush=True)
    print("Next: perennial repro")
    return 0


def main(arguments: Namespace) -> int:
    if arguments.preset and arguments.preset not in NAMES:
        guess = did_you_mean(difflib.get_close_matches(arguments.preset, NAMES, n=1))
        raise UserError(Fault("preset", arguments.preset, "value", allowed=" | ".join(NAMES), remedy=guess))
    return start(arguments.preset, arguments.photos or "", arguments.verbose)
