"""Stage `report`: one page about the run, for a browser.

    perennial report        reads what the other stages wrote; writes reports/index.html

The page needs no other file and no network. It has the same bytes for the same inputs: no time, no host, no path of the
machine, and nothing that depends on the kind of CPU.
"""

from argparse import Namespace
from pathlib import Path

from pipeline.base import files, linux
from pipeline.config.params import Params
from pipeline.data import originals, split_table, suspects
from pipeline.reporting import facts, gallery, page, thumbnails
from pipeline.reporting.audit import Audit
from pipeline.reporting.gallery import Chosen
from pipeline.stages import frame


def wanted(chosen: Chosen, found: Audit) -> dict[str, bool]:
    """The path of every image that the page shows, and whether it must be possible to decode it."""
    left_out = [file for reason in found.reasons for file in reason.examples if file.is_picture]
    used = [path for group in found.groups for path in group.examples]
    used += [suspect.path for issue in found.issues for suspect in issue.examples]
    used += [answer.path for answer in (*chosen.mistakes, *chosen.unsure)]
    return dict.fromkeys((file.path for file in left_out), False) | dict.fromkeys(used, True)


def run(config: Params) -> None:
    """Write the page. Raises UserError if an input is missing or damaged."""
    linux.share_freed_memory()
    paths = config.paths
    rows = split_table.all_rows(Path(paths.split))
    found = facts.read(config, rows, suspects.read(Path(paths.metrics) / suspects.NAME))
    chosen = gallery.choose(found.outcome.answers)
    source = originals.locate(Path(paths.images), Path(paths.inbox))
    workers = config.run.decoding_threads
    pictures = thumbnails.pictures(source, wanted(chosen, found.audit), config.prepare.grey, workers, "report")
    target = Path(paths.reports) / "index.html"
    files.write_text(target, page.page(found, chosen, pictures))
    print(f"report: {target}: open it in a browser")


def main(_: Namespace) -> int:
    return frame.run_stage("report", run)
