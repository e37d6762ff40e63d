"""Stage `report`: one page about the run, for a browser.

    perennial report        reads what the other stages wrote; writes reports/index.html

The page needs no other file and no network. It has the same bytes for the same inputs: no time, no host, no path of the
machine, and nothing that depends on the kind of CPU, if it has AVX2 and FMA. For heat maps, mistakes go through the
model again. Without a mistake, and after a head that is solved, torch is not imported.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.answers import classify
from pipeline.base import files, linux
from pipeline.config.params import Params
from pipeline.data import suspects
from pipeline.dataset import split_table
from pipeline.reporting import facts, first_step, gallery, heat_maps, nearest, page, thumbnails
from pipeline.reporting.audit import WITH_PICTURE, Audit
from pipeline.reporting.gallery import HardAnswers
from pipeline.reporting.outcome import Answer
from pipeline.sources import originals
from pipeline.versioning import identity


def image_paths(answers: HardAnswers, refused: Sequence[Answer], audit: Audit) -> dict[str, bool]:
    """The path of every image on the page → whether it must be possible to decode it."""
    excluded = [row.path for name, rows in audit.shown_reasons.items() if name in WITH_PICTURE for row in rows]
    used = [row.path for group in audit.shown_groups for row in group]
    used += [suspects[0].path for images in audit.shown_issues.values() for suspects in images]
    used += [answer.path for answer in (*answers.mistakes, *answers.right_answers, *refused)]
    return dict.fromkeys(excluded, False) | dict.fromkeys(used, True)


def run(config: Params) -> None:
    """Write the page. Raises UserError if an input is missing or damaged."""
    linux.share_freed_memory()
    paths = config.paths
    rows = split_table.all_rows(Path(paths.split))
    run_facts = facts.read(
        config, identity.settings(config, ["report"]), rows, suspects.read(Path(paths.metrics) / suspects.NAME)
    )
    answers = gallery.hard_answers(run_facts.outcome.answers)
    source = originals.locate(Path(paths.images), Path(paths.inbox))
    mistakes = [answer.path for answer in answers.mistakes]
    # Features of a backbone that is trained further are not what the model sees.
    near = {} if config.train.has_steps else nearest.photos(Path(paths.features), rows, mistakes)
    paths_on_page = image_paths(answers, run_facts.reliance.refused, run_facts.audit)
    paths_on_page |= {row.path: True for some in near.values() for row in some}
    pictures = thumbnails.pictures(source, paths_on_page, config.prepare.grey, config.run.decoding_threads, "report")
    if answers.mistakes:  # before torch is imported: the maps are the same bytes on every CPU
        classify.set_variables(config.train, replace(run_facts.model, arithmetic="portable"))
    maps = heat_maps.heat_maps(config, run_facts.model, source, answers.mistakes)
    target = Path(paths.reports) / "index.html"
    text = page.page(run_facts, answers, pictures, maps, near, first_step.pictures(config))
    files.write_text(target, text)
    print(f"report: {target}: open it in a browser")
