"""Images on the page: the mistakes, the unsure answers, what was left out, and what belongs together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.data import corrections, split_table, suspects
from pipeline.data import credits as of_photos
from pipeline.data.split_table import BY_HAND, CONFLICT, DUPLICATE, SPLITS
from pipeline.reporting import audit, markup
from pipeline.reporting.audit import Audit, LeftOut
from pipeline.reporting.markup import are, code, isolated, name, paragraph, percent, text
from pipeline.reporting.outcome import Answer
from pipeline.reporting.thumbnails import NO_PICTURE, Thumbnail

MOST_ANSWERS = 24  # mistakes, and as many right answers
MOST_ROWS = 200  # classes in the table of counts
MEASURES = {  # issue → what its number is
    "dark": "The brightness, from 0 to 1, that 99 % of the pixels do not exceed",
    "bright": "The brightness, from 0 to 1, that 95 % of the pixels exceed",
    "blurred": "How strong the edges are; a photo with a soft background has few, too",
    "low_information": "Bits of information per value of a pixel",
    "grey": "The difference between the colour channels, of 255, that 99 % of the pixels do not exceed",
    "odd_aspect": "The short side divided by the long side",
    "odd_size": "The side in pixels of a square of the same area; most images of this set have another one",
}


@dataclass(frozen=True)
class Album:
    """The thumbnails of the page and the credits of the photos, by the path of the image."""

    pictures: Mapping[str, Thumbnail]
    credits: Mapping[str, str]


@dataclass(frozen=True)
class Chosen:
    """The answers that are shown, and how many there are."""

    mistakes: Sequence[Answer]
    mistakes_in_all: int
    unsure: Sequence[Answer]
    right_in_all: int

    @property
    def pairs(self) -> frozenset[tuple[int, int]]:
        """The cells of the confusion matrix that these are in."""
        return frozenset((answer.actual, answer.predicted) for answer in (*self.mistakes, *self.unsure))


def choose(answers: Sequence[Answer]) -> Chosen:
    """The most confident mistakes and the least confident right answers; ties in the order of answers."""
    mistakes = sorted((one for one in answers if not one.is_right), key=lambda one: -one.probabilities[1])
    unsure = sorted((one for one in answers if one.is_right), key=lambda one: one.probabilities[1])
    return Chosen(mistakes[:MOST_ANSWERS], len(mistakes), unsure[:MOST_ANSWERS], len(unsure))


def images(chosen: Chosen, classes: Sequence[str], album: Album, whole: str = "metrics/predictions.csv") -> str:
    """The most confident mistakes and the least confident right answers. `whole`: the table of all answers."""
    seen: set[str] = set()
    parts = [
        '<p id="filter" role="status" tabindex="-1" hidden><span></span> <button type="button">show all</button></p>',
        _group(
            "Mistakes, the most confident first",
            _how_many(len(chosen.mistakes), chosen.mistakes_in_all, "mistake", "mistakes", whole),
            [_answer(answer, classes, album, seen) for answer in chosen.mistakes],
        ),
        _group(
            "Right answers, the least confident first",
            _how_many(len(chosen.unsure), chosen.right_in_all, "right answer", "right answers", whole),
            [_answer(answer, classes, album, seen) for answer in chosen.unsure],
        ),
    ]
    return markup.section("images", "Which images are hard?", *parts)


def _group(title: str, how_many: str, made: Sequence[str]) -> str:
    """Images under their heading. A filter hides a group without an image that it shows."""
    return f'<div class="group">\n<h3>{title}</h3>\n{paragraph(how_many, "number")}\n{shots(made)}\n</div>'


def _how_many(shown: int, in_all: int, one: str, several: str, whole: str) -> str:
    if not in_all:
        return f"There is no {one}."
    if shown == in_all:
        return f"All {are(in_all, one, several)}." if in_all > 1 else f"The only {one}."
    return f"{shown:,} of {are(in_all, one, several)}; {whole} has all."


def _answer(answer: Answer, classes: Sequence[str], album: Album, seen: set[str]) -> str:
    """One test image with its probabilities. The first of a cell of the confusion matrix gets the cell's address."""
    actual, predicted, second = (classes[k] for k in (answer.actual, answer.predicted, answer.second))
    of_actual, of_predicted, of_second = map(percent, answer.probabilities)
    lines = (
        [f"<b>{name(actual)}</b> {of_actual}", f"second: {name(second)} {of_second}"]
        if answer.is_right
        else [f"is <b>{name(actual)}</b> {of_actual}", f"taken for <b>{name(predicted)}</b> {of_predicted}"]
    )
    pair = f"{answer.actual}-{answer.predicted}"
    address = "" if pair in seen else f' id="shot-{pair}"'
    seen.add(pair)
    return shot(answer.path, lines, album, f'{address} data-pair="{pair}"')


def shots(made: Sequence[str]) -> str:
    """Images side by side."""
    body = "\n".join(made)
    return f'<div class="shots">\n{body}\n</div>' if made else ""


def shot(path: str, lines: Sequence[str], album: Album, attributes: str = "") -> str:
    """A thumbnail above its lines of HTML, its file name and its credit."""
    credit = album.credits.get(path, "")
    shown = [*lines, f'<span class="file" title="{text(path)}">{markup.path(path.rpartition("/")[2])}</span>']
    if credit:
        address = of_photos.address(credit)
        words = text(of_photos.without_address(credit))
        linked = f'<a href="{text(address)}" rel="noopener">{words}</a>' if address else words
        shown.append(f'<span class="credit">{linked}</span>')
    body = "".join(f"<span>{line}</span>" for line in shown)
    return f'<figure class="shot"{attributes}>{_picture(path, album)}<figcaption>{body}</figcaption></figure>'


def _picture(path: str, album: Album) -> str:
    picture = album.pictures.get(path, NO_PICTURE)
    if picture == NO_PICTURE:
        return '<span class="missing">no picture</span>'
    size = f'width="{picture.width}" height="{picture.height}"'
    return f'<img src="{picture.source}" {size} alt="{isolated(path)}">'


# ---- the audit ----


def data(found: Audit, album: Album) -> str:
    """What became of every file."""
    used = found.files - found.total("excluded")
    left_out = found.total("excluded")
    parts = [
        paragraph(f"{are(found.files, 'file', 'files')} in all: used {used:,}, left out {left_out:,}."),
        _counts(found),
        "<h3>Left out</h3>",
        markup.beside(*(_reason(reason, album) for reason in found.reasons)),
    ]
    if not found.reasons:
        parts.append(paragraph("No file."))
    if found.reasons_in_all > len(found.reasons):
        parts.append(
            paragraph(f"{found.reasons_in_all - len(found.reasons):,} more reasons are not shown; split.csv has them.")
        )
    return markup.section("data", "What is in the data?", *parts, _groups(found, album), _suspicious(found, album))


def _counts(found: Audit) -> str:
    """Files by class and part, the largest classes first if there are very many."""
    parts = (*SPLITS, "excluded")
    order = sorted(found.by_class, key=lambda label: (-sum(found.by_class[label].values()), label))
    shown = sorted(order[:MOST_ROWS])
    rows = [(name(label), *(f"{found.by_class[label][part]:,}" for part in parts)) for label in shown]
    rows.append(("all", *(f"{found.total(part):,}" for part in parts)))
    caption = "Files by class and part"
    if len(shown) < len(order):
        caption += f": the {MOST_ROWS} largest of {len(order):,} classes; split.csv has all"
    return markup.table(caption, ("class", "train", "validation", "test", "left out"), rows, "numbers total")


def _reason(reason: audit.Reason, album: Album) -> str:
    rest = reason.count - len(reason.first)
    more = paragraph(f"{rest:,} more; split.csv has all.") if rest else ""
    first = shots([shot(file.path, _why(file), album) for file in reason.first])
    return f"<div><h4>{text(reason.name)}: {are(reason.count, 'file', 'files')}</h4>\n{first}\n{more}</div>"


def _why(file: LeftOut) -> list[str]:
    lines = [f"class {name(file.label)}"]
    kind = split_table.kind(file.reason)
    if kind == CONFLICT:
        lines += [f"the same image: {markup.path(other)}" for other in file.others]
    elif kind == DUPLICATE:
        lines.append(f"the same image: {markup.path(file.reason.partition(' of ')[2])}")
    elif kind == BY_HAND and (why := file.reason.partition(": ")[2]):
        lines.append(name(why))
    return lines


def _groups(found: Audit, album: Album) -> str:
    """Images that belong together, the largest groups first."""
    if not found.groups:
        return "<h3>Near duplicates and groups</h3>\n" + paragraph("No image belongs to another one.")
    said = (
        f"{are(found.groups_in_all, 'group', 'groups')} with {found.in_groups:,} images: they look nearly the same, or "
        f"split.group or labels.csv puts them together. The images of a group stay in one part, unless a given split "
        f"says otherwise."
    )
    groups = []
    for group in found.groups:
        rest = group.count - len(group.first)
        more = paragraph(f"{rest:,} more.") if rest else ""
        first = shots([shot(path, [], album) for path in group.first])
        groups.append(f"<div><h4>{group.count:,} images in {' and '.join(group.parts)}</h4>\n{first}\n{more}</div>")
    others = found.groups_in_all - len(found.groups)
    more = f"{are(others, 'more group is', 'more groups are')} not shown; the column group of split.csv has all."
    shown = [paragraph(said), markup.beside(*groups), *([paragraph(more)] if others > 0 else [])]
    return "\n".join(["<h3>Near duplicates and groups</h3>", *shown])


def _suspicious(found: Audit, album: Album) -> str:
    """Images that a person should look at, issue by issue, the worst first."""
    heading = "<h3>Suspicious images</h3>"
    if not found.issues:
        return f"{heading}\n{paragraph('No image is dark, bright, blurred, grey, or of an odd shape or size.')}"
    said = (
        f"They are used, and most are good images. Look at each: to correct a label, or to leave an image out, write a "
        f"line into {code(corrections.FILE)}. The file {suspects.NAME} has all."
    )
    return "\n".join([heading, paragraph(said), markup.beside(*(_issue(issue, album) for issue in found.issues))])


def _issue(issue: audit.Issue, album: Album) -> str:
    made = [
        shot(one.path, [f"class {name(one.label)}, {one.split}", f"{one.value:g}, limit {one.limit:g}"], album)
        for one in issue.first
    ]
    title = f"{suspects.issue_words(issue.name)}: {are(issue.count, 'image', 'images')}"
    rest = issue.count - len(issue.first)
    more = paragraph(f"{rest:,} more; {suspects.NAME} has all.") if rest else ""
    measured = paragraph(f"{MEASURES[issue.name]}.", "number")
    return f"<div><h4>{title}</h4>\n{measured}\n{shots(made)}\n{more}</div>"
