"""What this project changes in DVC, by replacing functions of it.

It is written for DVC 3.67.1 (CHECKED): tests/test_repro.py fails first if DVC is another one. Replaced are

    dvc.utils.serialize._common._dump_data   which writes dvc.lock, dvc.yaml and the run cache: atomic and synced
    dvc.utils.serialize._yaml.parse_yaml     which reads it, ten times in a run: the same text is parsed once
    dvc.stage.Stage.dump                     which records a stage in dvc.lock: first its outputs are on the disk
    dvc.stage.cache.StageCache               see run_cache.py
    tqdm.tqdm.display                        a bar is shown if it lasts longer than LONG, and none after its end

and while stages run, by in_process.py, `dvc.stage.run._run`. For another version of DVC, read them again, and what
calls them: `_modify_data`, `dump_yaml`, `rwlock`, `Stage.reproduce`, `cmd_run`, `run_stage`, repo/reproduce.py,
`CmdRepro`.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from dvc.stage import Stage
from dvc.utils import strictyaml
from dvc.utils.serialize import _common, _json, _yaml
from tqdm import tqdm

from pipeline.base import files
from pipeline.versioning import cache_repair, dvc_lock, run_cache

CHECKED = "3.67.1"  # the version of DVC
LONG = 1.0  # seconds


def dump_data(path: str, data: Any, dumper: Callable[..., Any], fs: Any = None, **options: Any) -> None:
    """In place of `_dump_data`, which cuts the file and writes it again."""
    with files.atomic_file(Path(path)) as partial, partial.open("w", encoding="utf-8") as stream:
        dumper(data, stream, **options)


def parse_yaml(text: str, path: str, typ: str = "safe") -> Any:
    """In place of `parse_yaml`. Of dvc.lock, no comments are kept for writing it again."""
    if typ == "safe" or Path(path).name == dvc_lock.LOCK.name:
        with suppress(Exception):  # DVC has a message for it
            return deepcopy(dvc_lock.parsed(text)) or {}
    return upstream_parse(text, path, typ)


def dump_synced(stage: Stage, **options: Any) -> None:
    """In place of `Stage.dump`: what dvc.lock names is on the disk before dvc.lock is."""
    cache_repair.sync(Path(stage.repo.cache.local_cache_dir))
    stage.dvcfile.dump(stage, **options)


def display_late(bar: Any, *arguments: Any, **options: Any) -> Any:
    """In place of `tqdm.display`."""
    bar.leave = False
    return time.time() - getattr(bar, "start_t", math.inf) > LONG and display(bar, *arguments, **options)


display, upstream_parse = tqdm.display, _yaml.parse_yaml


@cache
def apply() -> None:
    """Replace what is to be replaced, in this process."""
    _yaml.parse_yaml = strictyaml.parse_yaml = parse_yaml
    _common._dump_data = _yaml._dump_data = _json._dump_data = dump_data
    Stage.dump = dump_synced
    tqdm.display = display_late  # type: ignore[method-assign, assignment]
    run_cache.lock()
