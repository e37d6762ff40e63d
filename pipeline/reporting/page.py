"""The page as a whole: its frame, and its second half (settings, environment, how to repeat)."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.params import Params
from pipeline.data import corrections
from pipeline.models.description import Description
from pipeline.reporting import gallery, markup, result
from pipeline.reporting.audit import Audit
from pipeline.reporting.gallery import Album, Chosen
from pipeline.reporting.markup import code, paragraph, text
from pipeline.reporting.outcome import Outcome
from pipeline.reporting.settings import MODEL, Setting

STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("style.css", "script.js"))
PARTS = (
    ("quality", "quality"), ("trained", "data and model"), ("curves", "curves"), ("classes", "classes"),
    ("confusion", "confusion"), ("calibration", "calibration"), ("images", "images"), ("data", "audit"),
    ("settings", "settings"), ("environment", "environment"), ("repeat", "repeat"), ("next", "what next"),
)  # fmt: skip


@dataclass(frozen=True)
class Content:
    """Everything that the page shows."""

    config: Params
    model: Description
    outcome: Outcome
    chosen: Chosen
    audit: Audit
    album: Album
    settings: Sequence[Setting]
    packages: Sequence[tuple[str, str]]  # name and version
    hashes: Sequence[tuple[str, str]]  # of what, and the MD5


def page(content: Content) -> str:
    """The whole page: it needs no other file and no network."""
    model, outcome = content.model, content.outcome
    classes, calibration = result.classes(outcome), result.calibration(outcome)
    confusion = result.confusion(outcome.classes, outcome.counts, content.chosen.pairs)
    is_narrow = len(outcome.classes) <= result.NARROW
    body = "\n".join([
        result.quality(outcome),
        result.trained(content.config, model, content.audit, outcome),
        result.training(model, outcome),
        *([markup.beside(classes, confusion), calibration] if is_narrow else
          [markup.beside(classes, calibration), confusion]),
        gallery.images(content.chosen, model.classes, content.album),
        gallery.data(content.audit, content.album),
        markup.beside(settings(content.settings), environment(content)),
        repeat(content),
        following(),
    ])  # fmt: skip
    ending = f" on {len(model.classes):,} classes"
    script = SCRIPT.read_text(encoding="utf-8")
    return frame(f"{model.model}{ending}", f"{code(model.model)}{ending}", PARTS, body, script)


def frame(title: str, heading: str, parts: Sequence[tuple[str, str]], body: str, script: str = "") -> str:
    """A page with this title (text), this heading and body (HTML), and links to the parts: (address, text) of each.

    `script`: JavaScript that runs when the body is there.
    """
    style = STYLE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    links = "\n".join(f'<a href="#{anchor}">{shown}</a>' for anchor, shown in parts)
    # The policy forbids every request, and every script but the one of this page.
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{text(title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{heading}</h1>
<nav aria-label="Parts of this page">
{links}
</nav></header>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""


def settings(found: Sequence[Setting]) -> str:
    """The settings that are not as the project comes first, then the others."""
    changed = [(code(one.name), code(one.value), code(one.default)) for one in found if one.is_changed]
    others = [(code(one.name), code(one.value)) for one in found if not one.is_changed]
    return markup.section(
        "settings",
        "With which settings?",
        markup.table("Other than the defaults", ("setting", "value", "default"), changed)
        if changed
        else paragraph("All settings have their default values."),
        markup.folded(
            f"The {len(others)} settings with their default values",
            markup.table("As the project comes", ("setting", "value"), others),
        ),
        paragraph("Paths, and settings that change no byte of the result, are not listed.", "note"),
    )


def environment(content: Content) -> str:
    """The locked packages, and the hashes of the files."""
    promise = {
        "portable": "Computed with train.arithmetic: portable: every x86-64 CPU with AVX2 and FMA gives these bytes.",
        "native": "Computed with train.arithmetic: native: the same kind of CPU or GPU gives these bytes.",
    }
    return markup.section(
        "environment",
        "With what, and which files?",
        paragraph(promise[content.model.arithmetic]),
        markup.table("Packages that compute, from requirements/lock.txt", ("package", "version"), [
            (code(name), code(version)) for name, version in content.packages
        ]),
        markup.table("Files, as dvc.lock names them", ("file", "MD5"), [
            (text(name), code(digest)) for name, digest in content.hashes
        ]),
        paragraph(
            "The machine, its CPU or GPU, the time and the speed are in runs/*/provenance.json. They are not on this "
            "page: the same inputs give the same page.", "note",
        ),
    )  # fmt: skip


def repeat(content: Content) -> str:
    """The commands that give the same bytes again."""
    weights = dict(content.hashes)[MODEL]
    commands = markup.preformatted(
        f"git log --oneline -S {weights} -- dvc.lock   # the commit that has this model",
        "git checkout COMMIT",
        "make setup                   # the locked packages",
        "dvc pull                     # data and model, if they were pushed",
        "make verify                  # runs every stage again, and compares every byte",
        "python -m pipeline predict IMAGE",
    )
    note = paragraph("Commands of a clone of the project. docs/reproducibility.md says what is promised.", "note")
    return markup.section("repeat", "How to repeat it?", commands, note)


def following() -> str:
    """What a person can do next: commands of the project."""
    commands = markup.preformatted(
        "python -m pipeline predict PHOTO   # the class of a photo of your own, or of each photo in a folder",
        "make folds                         # tests every image once, and lists labels that are probably wrong",
        "make sweep                         # tries other settings, ranked on the validation images",
        'make compare REVS="HEAD NAME"      # two runs on one page: is the difference more than chance?',
        "dvc push                           # sends data and model to the remote, for others and for a new machine",
    )
    first = paragraph(
        f"Look at the mistakes first. If the label of an image is wrong, and not the answer, write a line into "
        f"{code(corrections.FILE)} (path, label, reason; the label {code(corrections.EXCLUDE)} leaves an image "
        f"out). Then {code('make repro')} runs again what that changes."
    )
    return markup.section("next", "What next?", first, commands)
