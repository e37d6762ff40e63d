"""The same training on emulated CPUs of several kinds: the SHA-256 of the model for each.

    python -m benchmarks portable                   12 ways of training on 5 CPUs and on this one: about half an hour
    python -m benchmarks portable --vit             also ViT-B/32 at 224 pixels, one step of one image

With train.arithmetic: portable every row has one hash. The last row is a control: without MKL's variable, a CPU of
another make has another hash. QEMU (apt-get install qemu-user) emulates AVX2 and FMA, and no AVX-512. The trainings are
stage `train`, with the environment that the launcher sets. A CPU's trainings run in forks of one process, because the
libraries alone take the emulator half a minute.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report
from pipeline.base import files, linux
from pipeline.base.errors import Fault, UserError
from pipeline.dataset import packed, split_table
from pipeline.learning import environment

HERE = "this CPU"
CPUS = ("Haswell", "Broadwell", "Skylake-Client", "EPYC-Rome", "EPYC-Milan")
CONTROL = "without MKL_CBWR"
SHARDS = 2
ATTEMPTS = 10  # QEMU 7.2 crashes now and then when a program has several threads


@dataclass(frozen=True)
class Case:
    """A way of training, and the images it trains on."""

    model: str
    parallel: str
    optimizer: str
    side: int  # of the images, in pixels
    train: int  # images; two steps of half of them, or one step of one image
    val: int

    @property
    def title(self) -> str:
        return f"{self.model} {self.parallel} {self.optimizer}"


MODELS = ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5")
WAYS = tuple(itertools.product(("ddp", "elastic"), ("sgd", "adamw")))
CASES = tuple(Case(model, *way, side=32, train=16, val=8) for model in MODELS for way in WAYS)
VIT = (Case("vit_b_32", "ddp", "adamw", side=224, train=1, val=1),)
TINY = (Case("shufflenet_v2_x0_5", "ddp", "sgd", side=32, train=8, val=2),)


def create(folder: Path, case: Case) -> None:
    """Make a folder in which `pipeline.stages.train` can run: random images of two classes, and params."""
    folder.mkdir(parents=True)
    for name in ("pipeline", "requirements", "docker", "dvc.yaml"):
        (folder / name).symlink_to(Path(name).resolve())
    shutil.copy2("params.yaml", folder)
    changes = {
        "device": "cpu", "precision": "fp32", "arithmetic": "portable", "model": case.model, "parallel": case.parallel,
        "optimizer": case.optimizer, "lr": 0.01 if case.optimizer == "sgd" else 0.001, "epochs": 1, "warmup_epochs": 0,
        "crop": case.side, "eval_crop": case.side, "eval_resize": case.side, "batch_size": max(case.train // 2, 1),
        "shards": SHARDS,
    }  # fmt: skip
    run = {"timeout_seconds": 100_000, "log_steps": 1000}
    workspace.set_params(
        folder, {"prepare": {"size": case.side}, "train": changes, "evaluate": {"batch_size": 4}, "run": run}
    )
    splits = ["train"] * case.train + ["val"] * case.val
    rows = [(f"{k % 2}/{k}.png", k % 2, split, "", 60, 50, "", "", "") for k, split in enumerate(splits)]
    files.write_csv(folder / "data/split.csv", split_table.HEADER, rows)
    shape = (len(rows), case.side, case.side, 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    with files.atomic_folder(folder / "data/packed") as packing:
        packed.write(packing, iter(pixels), len(rows), case.side)


def worker(*folders: str) -> None:
    """Be a process on one CPU: train in each folder, and print the hash as a line of JSON."""
    for number, folder in enumerate(folders):
        for _ in range(ATTEMPTS):
            status = train_in_a_fork(folder)
            if status >= 0:
                break
            print(f"the emulator crashed with signal {-status}; training again", file=sys.stderr, flush=True)
        model = Path(folder) / "models/model.safetensors"
        print(json.dumps([number, f"failed: {status}" if status else files.sha256(model)]), flush=True)


def train_in_a_fork(folder: str) -> int:
    """Train in the folder; the exit status, negative for a signal."""
    from pipeline.stages import train

    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.chdir(folder)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os._exit(train.main(Namespace()))


def hashes(cpu: str, cases: tuple[Case, ...], base: Path, without: str = "") -> dict[str, str]:
    """The hash of the model of each case on a CPU, by the case's title. Raises RuntimeError if a training fails."""
    folders = [base / f"{cpu}{without}" / str(number) for number in range(len(cases))]
    for folder, case in zip(folders, cases, strict=True):
        create(folder, case)
    variables = {**os.environ, **environment.required_variables(1, True, "portable"), "PYTHONPATH": str(Path.cwd())}
    variables |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    variables.pop(without, None)
    emulator = [] if cpu == HERE else [str(shutil.which("qemu-x86_64")), "-cpu", cpu]
    command = [*emulator, sys.executable, "-m", "benchmarks", "worker", "benchmarks.speed.portable", *map(str, folders)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) < len(cases) or any("failed" in value for _, value in answers):
        raise RuntimeError(f"{cpu}: {answers}\n{done.stderr[-5000:]}")
    return {case.title: value for case, (_, value) in zip(cases, answers, strict=True)}


def main() -> None:
    parser = measuring.parser(__doc__, "portable", photos=False)
    parser.add_argument("--vit", action="store_true", help="also ViT-B/32 at 224 pixels")
    options = parser.parse_args()
    if shutil.which("qemu-x86_64") is None:
        raise UserError(Fault("qemu-x86_64", "not installed", "machine", remedy="apt-get install qemu-user"))
    cpus = CPUS[:1] if options.tiny else CPUS
    cases = TINY if options.tiny else CASES + (VIT if options.vit else ())
    report = Report("portable", options, emulator=version(), cpus=", ".join(cpus))
    with workspace.temporary_folder("portable") as base, ThreadPoolExecutor(linux.usable_cores()) as pool:
        control = pool.submit(hashes, cpus[0], cases[:1], base, "MKL_CBWR")
        waiting = {cpu: pool.submit(hashes, cpu, cases, base) for cpu in (HERE, *cpus)}
        by_cpu = {}
        for cpu, future in waiting.items():
            by_cpu[cpu] = future.result()
            print(f"{cpu}: {len(by_cpu[cpu])} trainings", flush=True)
        without_variable = control.result()
    for case in cases:
        report.add(case.title, {cpu: answers[case.title][:12] for cpu, answers in by_cpu.items()})
    title = cases[0].title
    report.conclude(
        hashes_per_row={case.title: len({answers[case.title] for answers in by_cpu.values()}) for case in cases},
        control={"with MKL_CBWR": by_cpu[cpus[0]][title][:12], CONTROL: without_variable[title][:12]},
    )


def version() -> str:
    """The emulator's version."""
    stdout = subprocess.run(["qemu-x86_64", "--version"], capture_output=True, text=True, check=True).stdout
    return stdout.splitlines()[0]
