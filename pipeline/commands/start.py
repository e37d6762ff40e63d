"""Write params that suit this machine and these photos into params.yaml, and say how long a run takes.

    perennial start                     shows the presets; on a terminal, asks for one
    perennial start good                writes this one: quick, good, best, modern, fast or apex
    perennial start good --photos /path/to/photos
    perennial start quick --photos torchvision/MNIST

The values of a preset follow from the machine and the number of images (planning/presets.py). The time follows from a
few training steps on this machine (planning/estimate.py); it changes nothing in params.yaml.
"""

import functools
import operator
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.base import linux
from pipeline.base.errors import Fault, UserError
from pipeline.config import document, machine, params, rules, validity
from pipeline.config.machine import Machine
from pipeline.config.params import Data, Params, Split
from pipeline.planning import presets, survey
from pipeline.planning.presets import NAMES
from pipeline.planning.survey import Survey

WITHOUT_PHOTOS = (
    "Nothing is changed, and no image is here yet. There are three ways to go on:",
    "  perennial start --photos /path/to/photos    your own photos: a folder with one folder per class in it",
    "  perennial start --photos torchvision/CIFAR10    a public data set (docs/data.md lists them)",
    "  make demo                                   the whole pipeline on drawn flowers, in about 3 minutes",
)
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
        folder, project = Path(photos).expanduser().resolve(), Path.cwd()
        if not folder.is_dir():
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
    here: Machine
    source: dict[str, Any]  # the params that name where the images are, if they change
    found: Survey


def situation(config: Params, photos: str = "") -> Situation:
    """What there is. Raises UserError for a folder without images in it, or with a layout that `split` would refuse."""
    named = source(config, photos)
    return Situation(config, this_machine(), named, survey.survey(params.with_values(config, named)))


def this_machine() -> Machine:
    """The facts of this machine, with the cores that this process may use."""
    return replace(machine.read(), cores=linux.usable_cores())


def described(now: Situation) -> Iterator[str]:
    """What there is: the machine and the images, one line each."""
    here, found = now.here, now.found
    memory = linux.memory_bytes() / 2**30
    yield f"machine  cores: {here.cores}, memory: {memory:.0f} GiB, GPUs: {here.cuda_devices}, Apex: {here.apex}"
    yield f"images   {f'{found.images:,} in {found.classes} classes, in ' if found.images else ''}{found.where}"
    yield from (f"note     {note}" for note in found.notes)


def values(name: str, now: Situation) -> dict[str, Any]:
    """The params of a preset for these images, and where the images are."""
    training = now.found.parts(now.config.split)["train"]
    return now.source | presets.changes(name, now.here, training)


def accepted(name: str, now: Situation, new: dict[str, Any]) -> Params:
    """The params with the values of a preset. Raises UserError if other settings do not go with the preset."""
    changed = params.with_values(now.config, new)
    if not presets.obstacle(name, now.here) and (faults := validity.faults(changed, now.here)):
        value = f"other settings do not go with the preset {name}, so nothing is written"
        raise UserError(*faults, Fault(str(params.FILE), value, "pair", remedy=UNDO))
    return changed


def write(config: Params, new: dict[str, Any]) -> None:
    """Write the values into params.yaml, and print which lines change."""
    old = config.model_dump(mode="json")
    lines = [
        f"  {dotted:<22} {was} → {value}"
        for dotted, value in new.items()
        for was in [functools.reduce(operator.getitem, dotted.split("."), old)]
        if was != value
    ]
    if not lines:
        print(f"{params.FILE} has these values already.")
        return
    document.rewrite(params.FILE, new)
    print(f"Changed in {params.FILE}:", *lines, f"{UNDO}.", sep="\n")


def offer(now: Situation) -> None:
    """Print the presets, each with the time of a run here."""
    from pipeline.planning import estimate

    found = now.found if now.found.images else survey.EXAMPLE
    print("\nMeasuring a few training steps of each preset …")
    if found is survey.EXAMPLE:
        print(f"No image is here yet. The times are for {found.images:,} images in {found.classes} classes, as")
        print(f"{found.where} has, without the download and without split and prepare.")
    print("preset  model     pixels  epochs  batch  a run takes here")
    for name in NAMES:
        new = values(name, now)
        columns = (new[f"train.{key}"] for key in ("model", "crop", "epochs", "batch_size"))
        reason, changed = presets.obstacle(name, now.here), accepted(name, now, new)
        time = reason or estimate.describe_total(changed, estimate.measure_parts(changed, found))
        print("{:<8}{:<10}{:<8}{:<8}{:<7}{}".format(name, *columns, time), flush=True)


def chosen(now: Situation, photos: str) -> str:
    """The preset that the person at the terminal chooses; empty for none, or without a terminal."""
    offer(now)
    if not now.found.images and now.config.data.url == Data().url:
        print("", *WITHOUT_PHOTOS, sep="\n")
        return ""
    command = f"perennial start {presets.RECOMMENDED}{f' --photos {shlex.quote(photos)}' if photos else ''}"
    if not sys.stdin.isatty():
        print(f"\nNothing is changed. To take one: {command}")
        return ""
    keys = {name[0]: name for name in presets.choices(now.here)}
    question = f"Which one? {', '.join(f'{key}: {name}' for key, name in keys.items())}; Enter: none > "
    answer = "?"
    while answer not in ("", *keys, *keys.values()):
        print(f"\n{question}", end="", flush=True)
        answer = sys.stdin.readline().strip().lower()
    if not answer:
        print(f"Nothing is changed. To take one later: {command}")
    return keys.get(answer, answer)


def start(asked: str, photos: str) -> int:
    """Write the preset that was asked for, or let the user choose one; 0.

    Raises UserError for a preset that cannot run on this machine, and as `situation` and `accepted` do.
    """
    now = situation(params.load(), photos)
    print(*described(now), sep="\n", flush=True)
    name = asked or chosen(now, photos)
    if not name:
        return 0
    if name not in (possible := presets.choices(now.here)):
        raise UserError(Fault("preset", name, "machine", presets.obstacle(name, now.here), ", ".join(possible)))
    new = values(name, now)
    changed = accepted(name, now, new)
    print(f"\npreset   {name}")
    write(now.config, new)
    if reason := presets.obstacle(name, now.here):
        print(f"It {reason}: make image, then make image-repro.")
        return 0
    from pipeline.planning import estimate  # imports what decodes images, which takes a second

    print()
    for line in estimate.report_lines(changed, now.found):
        print(line, flush=True)
    print("Next: perennial repro")
    return 0


def main(arguments: Namespace) -> int:
    if arguments.preset and arguments.preset not in NAMES:
        raise UserError(Fault("preset", arguments.preset, "value", allowed=" | ".join(NAMES)))
    return start(arguments.preset, arguments.photos)
