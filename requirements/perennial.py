"""A project of Perennial from Python, in a notebook or a program. `make setup` installs this file in its environment.

    import perennial
    project = perennial.Project("roses")
    project.start("quick", photos="/path/to/photos")
    project.run()
    project.metrics["eval"]["accuracy"]
    project.predict(["a.jpg"])

Every command runs as a process of its own, so this process imports no torch. `images` and `model` import the code of
the project; only `model` imports torch.
"""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, Any

PUBLIC = "torchvision/"
WEB = ("http://", "https://")  # begin an address


class Failed(Exception):
    """A command of the program has failed, or a file is missing. The text is the program's message.

    `status`: the exit status of the program, or 1; see docs/operations.md for 75, a run that was stopped and saved.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Images:
    """The images of a split as they are packed, with their classes and files. Element i of each belongs to image i."""

    pixels: Any  # uint8 [n, S, S, 3], RGB; S is prepare.size
    labels: Any  # int64 [n], index into `classes`
    paths: tuple[str, ...]  # [n], in data/images
    classes: tuple[str, ...]  # [K], sorted


@dataclass(frozen=True)
class Report:
    """The report of a project: in a notebook the page itself, apart from the styles of the notebook."""

    path: Path

    def _repr_html_(self) -> str:
        """The page in a shadow root, which a script makes: a notebook has to be trusted to show it."""
        page = self.path.read_text(encoding="utf-8").replace(":root", ":host").replace("\nbody {", "\n:host {")
        text = json.dumps(page).replace("</", "<\\/")
        place = f"document.currentScript.parentElement.attachShadow({{mode: 'open'}}).innerHTML = {text}"
        return f"<div style='display: block'><script>{place}</script></div>"


class Project:
    """A project in a folder. Its own environment (.venv) runs the program; without one, that of this process.

    Raises Failed for a folder without the code of a project.
    """

    def __init__(self, folder: str | Path = ".") -> None:
        self.folder = Path(folder).expanduser().absolute()
        self._file("pipeline/__main__.py", "make a project: perennial new FOLDER")

    def __repr__(self) -> str:
        return f"perennial.Project({str(self.folder)!r})"

    def start(self, preset: str, photos: str | Path = "") -> None:
        """Write the settings of a preset (docs/presets.md) for this machine and these photos, and print them.

        `photos`: a folder with one folder per class, or torchvision/<name>; empty: as params.yaml says. Raises Failed.
        """
        is_public = str(photos).startswith(PUBLIC)
        where = ["--photos", str(photos) if is_public else str(Path(photos).expanduser().absolute())] if photos else []
        self._run("start", preset, *where)

    def run(self, *arguments: str) -> None:
        """Run what params.yaml describes: `perennial repro`, with its arguments. Prints its lines as they come.

        Ctrl-C, or the button of a notebook, stops the training after its current step and saves it; then it raises
        KeyboardInterrupt. Another `run` goes on. Raises Failed.
        """
        self._run("repro", *arguments)

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """The figures of the last run, by the names of their files: `eval` (test images), `train`, `export`.

        Accuracies are shares from 0 to 1, losses are in nats. Empty before the first run.
        """
        return {path.stem: json.loads(path.read_bytes()) for path in sorted(self.folder.glob("metrics/*.json"))}

    def predict(self, images: Sequence[str | Path], top: int | None = None) -> list[dict[str, Any]]:
        """The answer for each image, or for each image in a folder, in order, as of `perennial predict --json`.

        A text that begins with http:// or https:// is an address, and `path` of its answer. An answer has `path`
        (absolute), `class`, `probability` (0 to 1), `answer`, and `probabilities` by class: of all
        classes, or of the `top` most likely ones. Raises Failed, also if one of the files is no image.
        """
        words = [
            "--json",
            *(["--top", str(top)] if top else []),
            "--",
            *(image if str(image).lower().startswith(WEB) else Path(image).absolute() for image in images),
        ]
        return [json.loads(line) for line in self._run("predict", *map(str, words), show=False).splitlines()]

    def predictions(self) -> Any:
        """metrics/predictions.csv: of each test image `path`, `label`, `prediction`, and `p_<class>` (0 to 1) by class.

        A frame of pandas if pandas is installed, else a list of dicts. Raises Failed before the first run.
        """
        path = self._file("metrics/predictions.csv", "project.run() writes it")
        try:
            import pandas
        except ImportError:
            with path.open(encoding="utf-8", newline="") as lines:
                rows = [*csv.DictReader(lines)]
            return [{key: float(row[key]) if key.startswith("p_") else row[key] for key in row} for row in rows]
        texts = dict.fromkeys(("path", "label", "prediction"), str)  # a class may have the name 1, or NA
        return pandas.read_csv(path, dtype=texts, keep_default_na=False, float_precision="round_trip")

    def images(self, split: str) -> Images:
        """The packed images of `train`, `val` or `test`, copied into memory. Raises Failed before they are packed."""
        if split not in ("train", "val", "test"):
            raise Failed(f"split: {split!r}; allowed: train, val, test")
        with self._code():
            from pipeline.dataset import packed

            all_images = packed.load(self.folder / "data/packed", self.folder / "data/split.csv")
            rows = all_images.rows(split)
            paths = tuple(all_images.paths[row] for row in rows)
            return Images(all_images.images[rows], all_images.labels[rows], paths, all_images.classes)

    def model(self) -> Any:
        """The trained network, a torch.nn.Module in eval mode on the CPU: float32 [n, 3, crop, crop] → logits [n, K].

        It has two more attributes: `classes` [K], and `transform`, from the path of an image to its tensor
        [3, crop, crop]: decoded, cut and normalized as a test image. The last digits of a logit can differ from those
        of `predict`, which computes in the way that the training was told. Raises Failed without a model.
        """
        with self._code():
            import numpy as np
            import torch

            from pipeline.config import params
            from pipeline.evaluation import photos
            from pipeline.loader import center
            from pipeline.models import exported

            model = exported.load(self.folder / "models")
            limits = params.load(self.folder / params.FILE).split
        view, (mean, scale) = model.view, model.normalization.on(torch.device("cpu"))

        def transform(path: str | Path) -> torch.Tensor:
            image = photos.load_image(Path(path), view, limits.max_pixels, limits.min_side)
            (box,) = center.eval_boxes(np.array([image.size], np.int32), view.packed_size, view.resize, view.crop)
            pixels = torch.from_numpy(center.cut(image.pixels, box, view.crop))
            return (pixels - mean[:, None, None]) * scale[:, None, None]

        net: Any = model.net.eval()
        net.classes, net.transform = model.classes, transform
        return net

    @property
    def report(self) -> Report:
        """The report of the last run. Raises Failed before the first one."""
        return Report(self._file("reports/index.html", "project.run() writes it"))

    def _file(self, name: str, remedy: str) -> Path:
        """A file of the project. Raises Failed if it is not there."""
        if not (self.folder / name).is_file():
            raise Failed(f"{self.folder / name}: not found; {remedy}")
        return self.folder / name

    @contextmanager
    def _code(self) -> Iterator[None]:
        """A block that may import the project's code. Raises Failed for what it refuses.

        Also if the code of another project is in this process: Python has one module of a name.
        """
        loaded = getattr(sys.modules.get("pipeline"), "__file__", None)
        if loaded and not Path(loaded).parents[1].samefile(self.folder):
            raise Failed(
                f"this process has the code of {Path(loaded).parents[1]}; start another one (restart the kernel)"
            )
        sys.path.insert(0, str(self.folder))
        try:
            from pipeline.base.errors import UserError
        finally:
            sys.path.remove(str(self.folder))
        try:
            yield
        except UserError as error:
            raise Failed(str(error)) from None

    def _run(self, *words: str, show: bool = True) -> str:
        """Run a command of the program to its end. Returns its output, and prints it if `show`; errors are printed.

        Raises Failed with the lines of its stderr, and KeyboardInterrupt after the command has ended. If this process
        ends, the kernel of Linux sends SIGTERM to the command, which saves a training.
        """
        own = self.folder / ".venv/bin/python"
        python = str(own) if own.exists() else sys.executable
        pipe, kept = subprocess.PIPE, (list[str](), list[str]())

        def read(stream: IO[str], lines: list[str], target: IO[str] | None) -> None:
            for line in stream:
                lines.append(line)
                if target:
                    print(line, end="", file=target, flush=True)

        process = subprocess.Popen(
            [python, "-m", "pipeline", *words], env={**os.environ, "PERENNIAL_PARENT": str(os.getpid())},
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace",
            process_group=0,  # a terminal's Ctrl-C reaches this process alone, which passes it on once
        )  # fmt: skip
        assert process.stdout
        assert process.stderr
        targets = ((process.stdout, kept[0], sys.stdout if show else None), (process.stderr, kept[1], sys.stderr))
        threads = [Thread(target=read, args=target) for target in targets]
        for thread in threads:
            thread.start()
        is_interrupted = False
        while process.poll() is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                is_interrupted = True
                process.send_signal(signal.SIGINT)
        for thread in threads:
            thread.join()
        if is_interrupted:
            raise KeyboardInterrupt
        if process.returncode:
            message = "".join(kept[1]).strip() or f"{words[0]}: exit status {process.returncode}"
            raise Failed(message, process.returncode)
        return "".join(kept[0])
