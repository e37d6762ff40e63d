"""Compare experiments, commits and branches: changed params, accuracies with their intervals, time.

    perennial compare                     the last commit, and all experiments that began there
    perennial compare HEAD adept-wren     these; of two, also McNemar's exact test on the same test images, and
                                          a page with both: reports/compare.html. If photos were added, or a
                                          label was corrected, on the test images that both have
    perennial compare --json …            for programs: one JSON object; of two, with the test

A revision is a commit, branch, tag or experiment, or `workspace`: what is in this folder now. A failed or queued
experiment has no figures, and is shown as that.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from pipeline.base.errors import UserError, without_secrets
from pipeline.base.text import in_words
from pipeline.config import document, params
from pipeline.config.params import Params
from pipeline.evaluation import figures, metrics
from pipeline.evaluation.figures import EvalFigures
from pipeline.evaluation.metrics import Comparison
from pipeline.reporting.gallery import Album
from pipeline.running.terminal import columns
from pipeline.studies import home, pair, revisions
from pipeline.studies.pair import UNKNOWN
from pipeline.studies.revisions import Revision, Table
from pipeline.studies.workcopy import WorkCopy

HEAD = ("experiment", "validation (95 %)", "test (95 %)", "macro F1", "seconds", "images/s", "changed params")
FORMS = {"val_accuracy": ".3f", "accuracy": ".3f", "macro_f1": ".3f", "seconds": ",.0f", "images_per_second": ",.0f"}
TEST = "accuracy"  # the figure of the test images
LEAST_IN_COMMON = 6  # images: of five, no difference is significant, because 2 · 0.5⁵ is above metrics.LEVEL


def differing_params(all_of: Sequence[Revision]) -> list[str]:
    """The names of the params that differ among revisions, in the order of params.yaml."""
    names = dict.fromkeys(name for revision in all_of for name in revision.params)
    return [name for name in names if len({repr(revision.params.get(name)) for revision in all_of}) > 1]


def settings(revision: Revision, first: Revision, names: Sequence[str]) -> str:
    """The changed params of a revision that differ from the first one's; of the first one all of them."""
    return " ".join(
        f"{name}={_value(revision.params.get(name))}"
        for name in names
        if revision is first or revision.params.get(name) != first.params.get(name)
    )


def _value(value: object) -> str:
    return without_secrets(document.value_text(value))


def cells(revision: Revision, first: Revision, names: Sequence[str]) -> list[str]:
    """A revision as a row of the table."""
    changes = settings(revision, first, names)
    if revision.state:
        return [revision.name, revision.state, "", "", "", "", changes]
    texts = []
    for name, form in FORMS.items():
        share = revision.share(name)
        interval = f" ({share.low:.3f}-{share.high:.3f})" if share else ""
        texts.append(f"{revision.figures[name]:{form}}{interval}" if name in revision.figures else UNKNOWN)
    return [revision.name, *texts, changes]


def notes(all_of: Sequence[Revision]) -> Iterator[str]:
    """Sentences about what the table does not explain, and what to do."""
    if no_run := [revision.name for revision in all_of if revision.state == revisions.NO_RUN]:
        yield (
            f"{revisions.NO_RUN}: {in_words(no_run)}: no figures there; if a run in this folder is not committed: "
            f"git add . && git commit, or perennial compare {revisions.HERE}; else: perennial repro"
        )
    if failed := [revision.name for revision in all_of if revision.state == revisions.FAILED]:
        yield f"failed: why: dvc queue logs {failed[0]}"
    if untested := [revision.name for revision in all_of if not revision.state and TEST not in revision.figures]:
        yield f"only trained, not tested: {', '.join(untested)}; to test one: dvc exp apply NAME && perennial repro"
    if any(not revision.state and "seconds" not in revision.figures for revision in all_of):
        yield f"{UNKNOWN}: not known; seconds and images/s are in runs/, of trainings in this folder"


def reason_against_test(names: Sequence[str], tables: Sequence[Table]) -> str:
    """The reason why McNemar's test of two revisions is not possible; empty if it is possible."""
    without = "no test of the difference: "
    if lacking := [name for name, table in zip(names, tables, strict=True) if not table]:
        where = "neither in DVC's cache nor in its remote; run again what made them, or dvc push where they are"
        return f"{without}the predictions of {' and '.join(lacking)} are {where}"
    first, second = tables
    if (common := len(in_common(tables)[0])) < min(LEAST_IN_COMMON, max(map(len, tables))):
        number = f"{len(first)} and {len(second)}, {common} in common; needed: {LEAST_IN_COMMON}"
        remedy = "accuracies on other images cannot be compared; give both the same data and the same section split"
        return f"{without}{names[0]} and {names[1]} have other test images ({number}); {remedy}"
    return ""


def in_common(tables: Sequence[Table]) -> list[Table]:
    """The rows of two tables of predictions for the test images of both, with the same label, in the first's order."""
    rows = [{(row["path"], row["label"]): row for row in table} for table in tables]
    keys = [key for key in rows[0] if key in rows[1]]
    return [[table[key] for key in keys] for table in rows]


def left_out(names: Sequence[str], tables: Sequence[Table], images: int) -> str:
    """How many test images of each revision are not among these that both have; empty without one."""
    counts = [f"{len(table) - images} of {name}" for name, table in zip(names, tables, strict=True)]
    if all(len(table) == images for table in tables):
        return ""
    return f"left out, because only one has them, or with another label: {in_words(counts)} test images"


@dataclass(frozen=True)
class Verdict:
    """Whether one of two revisions is better on the test images of both, or the reason why nobody knows."""

    answer: str
    counts: str = ""  # the images that this follows from, in words
    test: Comparison | None = None
    page: Path | None = None

    @property
    def word(self) -> str:
        """Yes or No; empty if nobody knows."""
        return "" if not self.test else "Yes" if self.test.is_significant else "No"

    def lines(self) -> Iterator[str]:
        """The verdict for a terminal."""
        yield ": ".join(filter(None, (self.word, self.answer, self.counts)))
        if self.page:
            yield f"both on one page, for a browser: {self.page}"


def verdict(names: Sequence[str], tables: Sequence[Table]) -> Verdict:
    """McNemar's test of the predictions of two revisions on the same images."""
    test = metrics.mcnemar(*([row["label"] == row["prediction"] for row in table] for table in tables))
    counts = (
        f"images that only {names[0]} has right: {test.first_alone}, that only {names[1]} has right: "
        f"{test.second_alone}; McNemar's exact test, level {100 * metrics.LEVEL:g} %"
    )
    better, worse = (names[1], names[0]) if test.points > 0 else (names[0], names[1])
    difference = f"{abs(test.points):.1f} points more on these {test.images} images"
    if not test.points:
        least = 100 * LEAST_IN_COMMON / test.images
        reason = f"on so few, a difference below {least:.1f} points cannot be told from chance"
        answer = f"{names[0]} and {names[1]} have as many of these {test.images} images right; {reason}"
    elif test.is_significant:
        answer = f"{better} is better than {worse}: {difference}, which chance does not explain (p = {test.p:.2g})"
    else:
        answer = f"{better} has {difference} than {worse}; chance can do as much (p = {test.p:.2g})"
    return Verdict(answer, counts, test)


def on_these_images(known: Mapping[str, float], table: Table) -> dict[str, float]:
    """The figures of a revision, with its accuracy on the test images of `table`; other figures of tests are left out.

    They are of all its test images, and the other revision has other ones.
    """
    accuracy = sum(row["label"] == row["prediction"] for row in table) / len(table)
    tested = {field.name for field in fields(EvalFigures)}
    return {name: figure for name, figure in known.items() if name not in tested} | {TEST: accuracy}


def compare_two(
    first: Revision, second: Revision, experiments: Mapping[str, tuple[str, str]], config: Params
) -> Verdict:
    """The verdict on two revisions with test figures. Writes a page with both, if they have test images in common."""
    names = (first.name, second.name)
    tables = [revisions.table(name, experiments, config.paths, figures.PREDICTIONS) for name in names]
    if reason := reason_against_test(names, tables):
        return Verdict(reason)
    common = in_common(tables)
    rest = left_out(names, tables, len(common[0]))
    tested = verdict(names, common)
    counts = "; ".join(filter(None, (tested.counts, rest)))
    runs = [
        pair.Run(
            name=one.name,
            figures=on_these_images(one.figures, table) if rest else one.figures,
            images={**one.images, "test": len(table)},
            predictions=table,
            history=revisions.table(one.name, experiments, config.paths, figures.HISTORY),
        )
        for one, table in zip((first, second), common, strict=True)
    ]
    differing = [
        (key, _value(first.params.get(key)), _value(second.params.get(key)))
        for key in differing_params([first, second])
    ]
    photos = album(config, pair.paths_on_page(runs[0], runs[1]))
    text = pair.page(runs[0], runs[1], (tested.word, tested.answer, counts), differing, photos)
    page = home.write_page(config, "compare.html", text)
    return replace(tested, counts=counts, page=page)


def album(config: Params, paths: Iterable[str]) -> Album:
    """The pictures of these images, and who took them. An image of a revision may be gone, or another one here."""
    from pipeline.studies import study  # imports what decodes images, which takes a second

    try:
        return study.album(WorkCopy(Path(), config), paths, "compare", needed=False)
    except UserError as error:
        print(f"compare: the page has no pictures: {error}", file=sys.stderr)
        return Album({}, {})


def as_json(all_of: Sequence[Revision], two: Verdict | None) -> str:
    """The revisions with all that is known of them, and the test of two, or the reason why there is none."""
    test = {"answer": two.answer, **(asdict(two.test) if two.test else {})} if two else None
    content = {"revisions": [asdict(one) for one in all_of], "test": test}
    return without_secrets(json.dumps(content, indent=2, ensure_ascii=False))


def main(arguments: Namespace) -> int:
    """Print the comparison, as text or as JSON; 0. Raises UserError for a revision that does not exist."""
    config = params.load()
    experiments = revisions.experiments()
    names = dict.fromkeys(arguments.revisions or ["HEAD", *experiments])
    all_of = [revisions.read(name, experiments, config.paths) for name in names]
    with_test = [revision for revision in all_of if not revision.state and TEST in revision.figures]
    two = compare_two(with_test[0], with_test[1], experiments, config) if len(with_test) == 2 else None
    if arguments.json:
        print(as_json(all_of, two))
        return 0
    varied = differing_params(all_of)
    rows = [list(HEAD), *(cells(revision, all_of[0], varied) for revision in all_of)]
    print(*columns(rows), "", *notes(all_of), sep="\n")
    if two:
        print(*two.lines(), sep="\n")
    elif len(with_test) > 2:
        print(f"two of them in detail: perennial compare {with_test[0].name} {with_test[-1].name}")
    return 0
