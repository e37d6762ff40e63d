"""The predictions of all folds: their checks, figures, tables, and the page."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config import document
from pipeline.config.params import Params, Paths
from pipeline.evaluation import acceptance, figures, metrics
from pipeline.reporting.reliance import NO_SHARE, Coverage
from pipeline.studies import folds_page, home, label_errors, pooling, record, study
from pipeline.studies.pooling import Figures, FoldPredictions
from pipeline.studies.record import Origin, Part, Record
from pipeline.studies.store import Result, Study

Results = Mapping[tuple[int, int], Result]  # (seed, fold) → its result
LABEL_ERRORS, COVERAGE, RECORD, PAGE = "label_errors.csv", "coverage.json", "summary.json", "folds.html"
DIGITS = 10  # of a figure in the record


def check(splits: Sequence[Result]) -> None:
    """Raise UserError unless each image is a test image of exactly one fold. `splits`: one for each fold."""
    rows = [row for split in splits for row in study.rows(split)]
    images = sorted({row.path for row in rows})
    folds = Counter(row.path for row in rows if row.split == "test")
    if wrong := [path for path in images if folds[path] != 1]:
        count = folds[wrong[0]]
        value = f"a test image of {count} folds ({len(wrong):,} of {len(images):,} images are not of one fold)"
        remedy = (
            "if the data set gives its validation or test images (folders, labels.csv), remove that split; if a class "
            "has few images, take fewer folds, or set split.stratify: true"
        )
        raise UserError(Fault(wrong[0], value, "pair" if count else "missing", allowed="of one", remedy=remedy))


def read(results: Results) -> FoldPredictions:
    """The predictions of all trainings. Raises UserError if they do not belong together."""
    labels = {row.path: row.label for row in study.rows(next(iter(results.values())))}
    return pooling.read({key: result.folder / study.PREDICTIONS for key, result in results.items()}, labels)


def coverage(results: Results, predictions: FoldPredictions) -> Coverage:
    """What the limits of the models make of their test images. Another seed adds no image, so the counts are means."""
    asked, accepted = 0.0, 0
    for (seed, fold), result in results.items():
        content = acceptance.read(result.folder / Paths.models)
        limit = acceptance.limit(content, content.weights)
        if limit.reason:
            return Coverage(limit.coverage, NO_SHARE, limit.reason)
        probabilities = predictions.by_seed[predictions.seeds.index(seed)][predictions.folds == fold]
        asked = limit.coverage
        accepted += sum(acceptance.reaches(highest, limit.highest) for highest in probabilities.max(1).tolist())
    return Coverage(asked, metrics.share(accepted / len(predictions.seeds), len(predictions.paths)))


def hardware(results: Iterable[Result]) -> str:
    """The device and the CPU capability of the processes that trained these; of several kinds each of them once.

    Empty if no result has a whole provenance.json: no hash protects this file.
    """
    kinds = set()
    for path in (path for one in results for path in one.folder.glob(f"{Paths.runs}/*/provenance.json")):
        with suppress(OSError, ValueError, KeyError):
            kinds.add("{device}, {cpu_capability}".format(**json.loads(path.read_bytes())))
    return "; ".join(sorted(kinds))


def _make_record(results: Results, pooled_figures: Figures, origin: Origin) -> Record:
    """The record of the study."""
    first_seed, first = min(seed for seed, _ in results), next(iter(results.values()))
    data = {f"{Paths.split} of fold {fold}": one.hashes[Paths.split] for (seed, fold), one in results.items()
            if seed == first_seed}  # fmt: skip
    parts = [
        Part(part.seed, part.fold, part.images, part.right, hashes[f"{Paths.models}/model.safetensors"],
             hashes[study.PREDICTIONS])
        for part in pooled_figures.parts
        for hashes in [results[part.seed, part.fold].hashes]
    ]  # fmt: skip
    # Rounded: the last bits of logarithms depend on the kind of CPU, even if the answers do not.
    flat = {key: round(value, DIGITS) for key, value in document.leaves(asdict(pooled_figures)) if key != "parts"}
    return Record(record.decisive(first.config), data, flat, tuple(parts), origin)


def write(config: Params, runs: Study, results: Results, predictions: FoldPredictions, command: str) -> Record:
    """Write the tables, the page and the record into the folders of `config`, and print the figures.

    `command` gives the same bytes again; the page has it. Returns the record.
    """
    folder, first = Path(config.paths.metrics) / "folds", next(iter(results.values()))
    pooled_figures = pooling.figures(predictions)
    origin = replace(study.origin(runs), hardware=hardware(results.values()))
    study_record = _make_record(results, pooled_figures, origin)
    errors = label_errors.find(predictions.probabilities, predictions.labels, predictions.paths, predictions.classes)
    files.write_csv(folder / figures.PREDICTIONS, *pooling.table(predictions))
    files.write_csv(folder / LABEL_ERRORS, *label_errors.table(errors))
    examples, covered = folds_page.choose_examples(predictions), coverage(results, predictions)
    of_study = {"params": study_record.params, "origin": asdict(study_record.origin)}
    files.write_json(folder / COVERAGE, asdict(covered) | of_study)
    paths = folds_page.image_paths(examples, folds_page.shown(errors, len(predictions.paths)))
    content = folds_page.Content(
        config=first.config, predictions=predictions, figures=pooled_figures, examples=examples, errors=errors,
        album=study.album(runs.source, paths), command=command, coverage=covered,
    )  # fmt: skip
    home.write_page(config, PAGE, folds_page.page(content))
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
        *metrics.titled(figures, 4),
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
