"""Write params that suit this machine and these photos into params.yaml, and say how long a run takes.

    python -m pipeline.start                     shows the presets; on a terminal, asks for one
    python -m pipeline.start good                writes this one: quick, good, best or apex
    python -m pipeline.start good --photos /path/to/photos

The values of a preset follow from the machine and the number of images (planning/presets.py). The time follows from a
few training steps on this machine (planning/estimate.py); it changes nothing in params.yaml.
"""

import argparse
import functools
import operator
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.base import files
from pipeline.base.errors import UserError, exit_status
from pipeline.config import document, machine, params, validity
from pipeline.config.machine import Machine
from pipeline.config.params import Params
from pipeline.planning import presets, survey
from pipeline.planning.presets import NAMES
from pipeline.planning.survey import Survey

PARAMS = Path("params.yaml")
UNDO = f"git diff {PARAMS} shows what changed; git checkout {PARAMS} undoes all of it"


def source(config: Params) -> dict[str, Any]:
    """The param that makes a run use the inbox, if there are photos in it and no other source was chosen."""
    if config.data.source == "archive" and not survey.is_empty(Path(config.paths.inbox)):
        return {"data.source": "inbox"}
    return {}


def counted(config: Params) -> Survey:
    """The images that a run would use after start. Raises UserError for a layout that `split` would refuse."""
    return survey.survey(changed_by(config, source(config)))


def this_machine() -> Machine:
    """The facts of this machine, with the cores that this process may use."""
    return replace(machine.read(), cores=len(os.sched_getaffinity(0)))


def described(here: Machine, found: Survey) -> Iterator[str]:
    """What there is: the machine and the photos, one line each."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpus = f"{here.cuda_devices} GPU" if here.cuda_devices else "no GPU"
    yield f"machine  {here.cores} cores, {memory:.0f} GiB of memory, {gpus}, Apex: {here.apex}"
    count = f"{found.images:,} images in {found.classes} classes: " if found.images else ""
    yield f"images   {count}{found.where}"


def values(name: str, config: Params, here: Machine, found: Survey) -> dict[str, Any]:
    """The params of a preset for these photos, and where the photos are."""
    training = found.parts(config.split.fractions.model_dump())["train"]
    return source(config) | presets.changes(name, here, training)


def changed_by(config: Params, new: dict[str, Any]) -> Params:
    """The params with other values (dotted key → value). Raises UserError for a value that is not allowed."""
    raw = config.model_dump(mode="json")
    for dotted, value in new.items():
        section, key = dotted.split(".")
        raw[section][key] = value
    return params.parse(raw)


def accepted(name: str, config: Params, new: dict[str, Any], here: Machine) -> Params:
    """The params with the values of a preset. Raises UserError if other settings do not go with the preset."""
    changed = changed_by(config, new)
    if not presets.missing(name, here) and (faults := validity.faults(changed, here)):
        remedy = f"nothing is written: other settings in {PARAMS} do not go with the preset {name}; {UNDO}"
        raise UserError("\n".join([*faults, remedy]))
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
        print(f"{PARAMS} has these values already.")
        return
    files.write_text(PARAMS, document.rewritten(PARAMS.read_text(encoding="utf-8"), new))
    print(f"Changed in {PARAMS}:", *lines, f"{UNDO}.", sep="\n")


def offer(config: Params, here: Machine, found: Survey) -> None:
    """Print the presets, each with the time of a run here."""
    from pipeline.planning import estimate

    print("\npreset  model     pixels  epochs  batch  a run takes here (measuring, some seconds each)")
    for name in NAMES:
        new = values(name, config, here, found)
        columns = (new[f"train.{key}"] for key in ("model", "crop", "epochs", "batch_size"))
        row = "{:<8}{:<10}{:<8}{:<8}{:<7}".format(name, *columns)
        print(row, end="", flush=True)
        reason = presets.missing(name, here)
        changed = accepted(name, config, new, here)
        print(reason or estimate.total(changed, estimate.measured_parts(changed, found)), flush=True)


def chosen(config: Params, here: Machine, found: Survey) -> str:
    """The preset that the person at the terminal chooses; empty for none, or without a terminal."""
    offer(config, here, found)
    best = presets.RECOMMENDED
    if not sys.stdin.isatty():
        print(f"\nNothing is changed. To take one: python -m pipeline.start {best}")
        return ""
    keys = {name[0]: name for name in NAMES}
    answer = input(f"\nWhich one? {', '.join(f'{key}: {name}' for key, name in keys.items())}; Enter: none > ").strip()
    return answer if answer in NAMES else keys.get(answer, "")


def start(asked: str) -> int:
    """Write the preset that was asked for, or let the user choose one; 0."""
    config, here = params.load(), this_machine()
    found = counted(config)
    print(*described(here, found), sep="\n", flush=True)
    name = asked or chosen(config, here, found)
    if not name:
        return 0
    new = values(name, config, here, found)
    changed = accepted(name, config, new, here)
    print(f"\npreset   {name}")
    write(config, new)
    if reason := presets.missing(name, here):
        print(f"It {reason}.")
        return 0
    from pipeline.planning import estimate  # imports what decodes images, which takes a second

    print()
    for line in estimate.report(changed, found):
        print(line, flush=True)
    print("Next: make repro")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.start", description=__doc__.splitlines()[0])
    parser.add_argument("preset", nargs="?", choices=NAMES, help="without: all are shown")
    arguments = parser.parse_args()
    return exit_status("start", lambda: start(arguments.preset or ""))


if __name__ == "__main__":
    sys.exit(main())
