"""The predictions of all folds: their checks, figures, tables, and the page."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Params
from pipeline.data import credits, originals, split_table
from pipeline.evaluation import figures, label_errors, pooling
from pipeline.evaluation.pooling import Figures, FoldPredictions
from pipeline.models import acceptance
from pipeline.reporting import reliance, settings, thumbnails
from pipeline.reporting.gallery import Album
from pipeline.reporting.reliance import Coverage
from pipeline.reruns import folds_page, record
from pipeline.reruns.record import Origin, Record
from pipeline.reruns.workcopy import WorkCopy
from pipeline.versioning import dvc_lock

Copies = Mapping[tuple[int, int], WorkCopy]  # (seed, fold) → its work copy
LABEL_ERRORS, COVERAGE, RECORD, PAGE = "label_errors.csv", "coverage.json", "summary.json", "folds.html"


def check(copies: Mapping[int, WorkCopy]) -> None:
    """Raise UserError unless each image is a test image of exactly one fold. `copies`: fold → its work copy."""
    fold_of: dict[str, int] = {}  # test image → its fold
    images: set[str] = set()
    for fold, copy in copies.items():
        rows = split_table.kept_rows(copy.folder / copy.config.paths.split)
        images |= {row["path"] for row in rows}
        for path in (row["path"] for row in rows if row["split"] == "test"):
            if path in fold_of:
                raise UserError(
                    Fault(
                        path,
                        f"a test image of fold {fold_of[path]} and of fold {fold}",
                        "pair",
                        allowed="of one",
                        remedy="if the data set gives its test images (folders, labels.csv), remove that split; if a "
                        "class has few images, take fewer folds, or set split.stratify: true",
                    )
                )
            fold_of[path] = fold
    if missing := sorted(images - fold_of.keys()):
        raise UserError(
            Fault(
                missing[0],
                f"a test image of no fold (as {len(missing):,} of {len(images):,} images)",
                "missing",
                "a class has few images, and some were moved so that each split has one",
                remedy="take fewer folds, or set split.stratify: true",
            )
        )


def read(copies: Copies) -> FoldPredictions:
    """The predictions of all trainings. Raises UserError if they do not belong together."""
    first = next(iter(copies.values()))
    rows = split_table.kept_rows(first.folder / first.config.paths.split)
    tables = {key: copy.folder / copy.config.paths.metrics / figures.PREDICTIONS for key, copy in copies.items()}
    return pooling.read(tables, {row["path"]: row["class"] for row in rows})


def coverage(copies: Copies, predictions: FoldPredictions) -> Coverage:
    """What the limits of the models make of their test images."""
    parts = []
    for (seed, fold), copy in copies.items():
        limits = acceptance.limits_of(copy.folder / copy.config.paths.models)
        rows = predictions.folds == fold
        probabilities = predictions.by_seed[predictions.seeds.index(seed)][rows]
        parts.append((limits, probabilities, predictions.labels[rows]))
    return reliance.coverage(parts, len(predictions.seeds))


def _make_record(copies: Copies, pooled_figures: Figures, commit: str) -> Record:
    """The record of the study."""
    locks = {key: dvc_lock.read(copy.folder / dvc_lock.LOCK) for key, copy in copies.items()}
    first, copy = min(seed for seed, _ in copies), next(iter(copies.values()))
    config = copy.config
    splits = [lock["split"]["outs"][config.paths.split] for (seed, _), lock in sorted(locks.items()) if seed == first]
    outs = {key: {**lock["train"]["outs"], **lock["evaluate"]["outs"]} for key, lock in locks.items()}
    images = originals.locate(copy.folder / config.paths.images, copy.folder / config.paths.inbox)
    origin = Origin(record.digest(images, config.run.decoding_threads), commit)
    return record.make_record(config, splits, pooled_figures, outs, origin)


def write(config: Params, copies: Copies, predictions: FoldPredictions, command: str, commit: str) -> Record:
    """Write the tables, the page and the record into the folders of `config`, and print the figures.

    `command` gives the same bytes again; the page has it. `commit`: that of the copies' code. Returns the record.
    """
    folder, first = Path(config.paths.metrics) / "folds", next(iter(copies.values()))
    pooled_figures = pooling.figures(predictions)
    study_record = _make_record(copies, pooled_figures, commit)
    errors = label_errors.find(predictions.probabilities, predictions.labels)
    files.write_csv(folder / figures.PREDICTIONS, *pooling.table(predictions))
    files.write_csv(folder / LABEL_ERRORS, *label_errors.table(errors, predictions.paths, predictions.classes))
    examples, covered = folds_page.choose_examples(predictions), coverage(copies, predictions)
    origin = {"params": study_record.params, "origin": asdict(study_record.origin)}
    files.write_json(folder / COVERAGE, asdict(covered) | origin)
    content = folds_page.Content(
        config=first.config,
        predictions=predictions,
        figures=pooled_figures,
        examples=examples,
        errors=errors,
        coverage=covered,
        album=_album(first, folds_page.image_paths(examples, predictions, errors)),
        settings=settings.settings(first.config),
        command=command,
    )
    files.write_text(Path(config.paths.reports) / PAGE, folds_page.page(content))
    record.write(folder / RECORD, study_record)
    print(f"\n{_describe(pooled_figures, covered, len(errors), config)}")
    return study_record


def _album(copy: WorkCopy, paths: Mapping[str, bool]) -> Album:
    """The thumbnails of these images, and who took them."""
    images, inbox = copy.folder / copy.config.paths.images, copy.folder / copy.config.paths.inbox
    workers = copy.config.run.decoding_threads
    pictures = thumbnails.pictures(originals.locate(images, inbox), paths, copy.config.prepare.grey, workers, "folds")
    return Album(pictures, credits.credits(images / originals.LICENSE))


def _describe(figures: Figures, coverage: Coverage, errors: int, config: Params) -> str:
    """The figures as lines of a terminal. `errors`: how many labels are probably wrong."""
    folds, seeds = figures.over_folds, figures.over_seeds
    interval = f"95 % interval: {figures.accuracy_low:.4f} to {figures.accuracy_high:.4f}"
    lines = [
        ("images", f"{figures.images:,}, each tested by a model that was not trained on it"),
        ("accuracy", f"{figures.accuracy:.4f} ({interval})"),
        ("of one fold", f"{folds.mean:.4f} ± {folds.deviation:.4f} (mean and standard deviation of {folds.count})"),
        ("balanced accuracy", f"{figures.balanced_accuracy:.4f}"),
        ("macro F1", f"{figures.macro_f1:.4f}"),
        ("none of the classes", _accepted(coverage)),
        ("probable label errors", f"{errors:,}: {config.paths.metrics}/folds/{LABEL_ERRORS}"),
        ("all figures", f"{config.paths.metrics}/folds/{RECORD}"),
        ("the page, for a browser", f"{config.paths.reports}/{PAGE}"),
    ]
    if seeds.count > 1:
        lines.insert(3, ("of one seed", f"{seeds.mean:.4f} ± {seeds.deviation:.4f} (of {seeds.count})"))
    return "\n".join(f"{name:<24} {text}" for name, text in lines)


def _accepted(coverage: Coverage) -> str:
    """How many test images the limits accept, in words."""
    if coverage.reason:
        return f"not known: {coverage.reason}"
    accepted, covered = coverage.accepted, coverage.covered
    return (
        f"{accepted.share:.4f} of the test images are accepted ({accepted.low:.4f} to {accepted.high:.4f}), "
        f"{covered.share:.4f} have their class in the set ({covered.low:.4f} to {covered.high:.4f}); "
        f"asked for: {coverage.asked}"
    )
