"""The predictions of all folds: their checks, figures, tables, and the page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config import document
from pipeline.config.params import Params
from pipeline.evaluation import acceptance, figures, metrics
from pipeline.reporting.reliance import NO_SHARE, Coverage
from pipeline.studies import folds_page, label_errors, pooling, record, study
from pipeline.studies.pooling import Figures, FoldPredictions
from pipeline.studies.record import Part, Record
from pipeline.studies.workcopy import WorkCopy
from pipeline.versioning import dvc_lock

Copies = Mapping[tuple[int, int], WorkCopy]  # (seed, fold) → its work copy
LABEL_ERRORS, COVERAGE, RECORD, PAGE = "label_errors.csv", "coverage.json", "summary.json", "folds.html"
DIGITS = 10  # of a figure in the record


def check(copies: Sequence[WorkCopy]) -> None:
    """Raise UserError unless each image is a test image of exactly one fold. `copies`: one for each fold."""
    rows = [row for copy in copies for row in study.rows(copy)]
    images = sorted({row["path"] for row in rows})
    folds = Counter(row["path"] for row in rows if row["split"] == "test")
    if wrong := [path for path in images if folds[path] != 1]:
        count = folds[wrong[0]]
        value = f"a test image of {count} folds ({len(wrong):,} of {len(images):,} images are not of one fold)"
        remedy = (
            "if the data set gives its test images (folders, labels.csv), remove that split; if a class has few "
            "images, take fewer folds, or set split.stratify: true"
        )
        raise UserError(Fault(wrong[0], value, "pair" if count else "missing", allowed="of one", remedy=remedy))


def read(copies: Copies) -> FoldPredictions:
    """The predictions of all trainings. Raises UserError if they do not belong together."""
    labels = {row["path"]: row["class"] for row in study.rows(next(iter(copies.values())))}
    return pooling.read({key: study.predictions(copy) for key, copy in copies.items()}, labels)


def coverage(copies: Copies, predictions: FoldPredictions) -> Coverage:
    """What the limits of the models make of their test images. Another seed adds no image, so the counts are means."""
    asked, accepted = 0.0, 0
    for (seed, fold), copy in copies.items():
        limit = acceptance.limit_of(study.models(copy))
        if limit.reason:
            return Coverage(limit.coverage, NO_SHARE, limit.reason)
        probabilities = predictions.by_seed[predictions.seeds.index(seed)][predictions.folds == fold]
        asked = limit.coverage
        accepted += sum(acceptance.reaches(highest, limit.highest) for highest in probabilities.max(1).tolist())
    return Coverage(asked, metrics.share(accepted / len(predictions.seeds), len(predictions.paths)))


def _make_record(copies: Copies, pooled_figures: Figures, commit: str) -> Record:
    """The record of the study."""
    first_seed, first = min(seed for seed, _ in copies), next(iter(copies.values()))
    paths, data, parts = first.config.paths, {}, []
    for part in pooled_figures.parts:
        lock = dvc_lock.read(copies[part.seed, part.fold].folder / dvc_lock.LOCK)
        if part.seed == first_seed:
            data[f"{paths.split} of fold {part.fold}"] = lock["split"]["outs"][paths.split]
        model = lock["train"]["outs"][f"{paths.models}/model.safetensors"]
        predictions = lock["evaluate"]["outs"][f"{paths.metrics}/{figures.PREDICTIONS}"]
        parts.append(Part(part.seed, part.fold, part.images, part.right, model, predictions))
    # Rounded: the last bits of logarithms depend on the kind of CPU, even if the answers do not.
    flat = {key: round(value, DIGITS) for key, value in document.leaves(asdict(pooled_figures)) if key != "parts"}
    return Record(record.decisive(first.config), data, flat, tuple(parts), study.origin(first, commit))


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
    files.write_json(folder / COVERAGE, asdict(covered) | study.conditions(first.config, study_record.origin))
    content = folds_page.Content(
        config=first.config,
        predictions=predictions,
        figures=pooled_figures,
        examples=examples,
        errors=errors,
        coverage=covered,
        album=study.album(first, folds_page.image_paths(examples, predictions, errors)),
        command=command,
    )
    files.write_text(Path(config.paths.reports) / PAGE, folds_page.page(content))
    record.write(folder / RECORD, study_record)
    print(f"\n{_describe(pooled_figures, covered, len(errors), config)}")
    return study_record


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
        *([("", doubt)] if (doubt := label_errors.doubt(errors, figures.images)) else []),
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
    accepted = coverage.accepted
    return (
        f"{accepted.share:.4f} of the test images are accepted ({accepted.low:.4f} to {accepted.high:.4f}); "
        f"asked for: {coverage.asked}"
    )
