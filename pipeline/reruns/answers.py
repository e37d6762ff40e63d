"""What the trainings of all folds answered: checks, figures, tables, and the page."""

from collections.abc import Mapping
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Params
from pipeline.data import credits, originals, split_table
from pipeline.evaluation import label_errors, pooled
from pipeline.evaluation.pooled import Figures, Pooled
from pipeline.reporting import settings, thumbnails
from pipeline.reporting.gallery import Album
from pipeline.reruns import folds_page, record
from pipeline.reruns.record import Record
from pipeline.reruns.workcopy import WorkCopy
from pipeline.versioning import dvc_lock

Made = Mapping[tuple[int, int], WorkCopy]  # the work copy of each (seed, fold)


def check(made: Mapping[int, WorkCopy]) -> None:
    """Raise UserError unless each image is a test image of exactly one fold. `made`: the copy of each fold."""
    tested: dict[str, int] = {}
    kept: set[str] = set()
    for fold, copy in made.items():
        rows = split_table.kept_rows(copy.folder / copy.config.paths.split)
        kept |= {row["path"] for row in rows}
        for path in (row["path"] for row in rows if row["split"] == "test"):
            if path in tested:
                raise UserError(
                    Fault(
                        path,
                        f"a test image of fold {tested[path]} and of fold {fold}",
                        "pair",
                        allowed="of one",
                        remedy="if the data set gives its test images (folders, labels.csv), remove that split; if a "
                        "class has few images, take fewer folds, or set split.stratify: true",
                    )
                )
            tested[path] = fold
    if missing := sorted(kept - tested.keys()):
        raise UserError(
            Fault(
                missing[0],
                f"a test image of no fold (as {len(missing):,} of {len(kept):,} images)",
                "missing",
                "a class has few images, and some were moved so that each split has one",
                remedy="take fewer folds, or set split.stratify: true",
            )
        )


def read(made: Made) -> Pooled:
    """The answers of all trainings. Raises UserError if they do not belong together."""
    first = next(iter(made.values()))
    rows = split_table.kept_rows(first.folder / first.config.paths.split)
    tables = {key: copy.folder / copy.config.paths.metrics / "predictions.csv" for key, copy in made.items()}
    return pooled.read(tables, {row["path"]: row["class"] for row in rows})


def _recorded(made: Made, figures: Figures) -> Record:
    """The record of the study."""
    locks = {key: dvc_lock.read(copy.folder / dvc_lock.LOCK) for key, copy in made.items()}
    first, config = min(seed for seed, _ in made), next(iter(made.values())).config
    splits = [lock["split"]["outs"][config.paths.split] for (seed, _), lock in sorted(locks.items()) if seed == first]
    outs = {key: {**lock["train"]["outs"], **lock["evaluate"]["outs"]} for key, lock in locks.items()}
    return record.of(config, splits, figures, outs)


def write(config: Params, made: Made, found: Pooled, command: str) -> Record:
    """Write the tables, the page and the record into the folders of `config`, and print the figures.

    `command` gives the same bytes again; the page has it. Returns the record.
    """
    folder, first = Path(config.paths.metrics) / "folds", next(iter(made.values()))
    figures = pooled.figures(found)
    record_of = _recorded(made, figures)
    wrong = label_errors.find(found.probabilities, found.labels)
    files.write_csv(folder / "predictions.csv", *pooled.table(found))
    files.write_csv(folder / "label_errors.csv", *label_errors.table(wrong, found.paths, found.classes))
    chosen = folds_page.chosen(found)
    content = folds_page.Content(
        config=first.config,
        pooled=found,
        figures=figures,
        chosen=chosen,
        found=wrong,
        album=_album(first, folds_page.wanted(chosen, found, wrong)),
        settings=settings.settings(first.config),
        command=command,
    )
    files.write_text(Path(config.paths.reports) / "folds.html", folds_page.page(content))
    record.write(folder / "summary.json", record_of)
    print(f"\n{said(figures, len(wrong), config)}")
    return record_of


def _album(copy: WorkCopy, wanted: Mapping[str, bool]) -> Album:
    """The thumbnails of these images, and who took them."""
    images, inbox = copy.folder / copy.config.paths.images, copy.folder / copy.config.paths.inbox
    workers = copy.config.run.decoding_threads
    pictures = thumbnails.pictures(originals.locate(images, inbox), wanted, copy.config.prepare.grey, workers, "folds")
    return Album(pictures, credits.credits(images / originals.LICENSE))


def said(figures: Figures, wrong: int, config: Params) -> str:
    """The figures, in words."""
    folds, seeds = figures.over_folds, figures.over_seeds
    interval = f"95 % interval: {figures.accuracy_low:.4f} to {figures.accuracy_high:.4f}"
    lines = [
        ("images", f"{figures.images:,}, each tested by a model that was not trained on it"),
        ("accuracy", f"{figures.accuracy:.4f} ({interval})"),
        ("of one fold", f"{folds.mean:.4f} ± {folds.deviation:.4f} (mean and standard deviation of {folds.count})"),
        ("balanced accuracy", f"{figures.balanced_accuracy:.4f}"),
        ("macro F1", f"{figures.macro_f1:.4f}"),
        ("probable label errors", f"{wrong:,}: {config.paths.metrics}/folds/label_errors.csv"),
        ("all figures", f"{config.paths.metrics}/folds/summary.json"),
        ("the page, for a browser", f"{config.paths.reports}/folds.html"),
    ]
    if seeds.count > 1:
        lines.insert(3, ("of one seed", f"{seeds.mean:.4f} ± {seeds.deviation:.4f} (of {seeds.count})"))
    return "\n".join(f"{name:<24} {text}" for name, text in lines)
