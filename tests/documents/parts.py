"""Every generated part of the documents, by its name. A part is between <!-- name --> and <!-- /name -->."""

from collections.abc import Callable, Mapping
from functools import partial

from tests.conftest import PROJECT
from tests.documents import choices, reports, results, settings

MEASURED = ("loader_cpu", "peers_cuda", "ceiling_rows_cuda", "ways_cuda")
DOCUMENTS: Mapping[str, Mapping[str, Callable[[], str]]] = {  # document → its parts
    **{name: {"results": partial(results.of_readme, name)} for name in results.TITLES},
    "docs/apex.md": {"steps_cuda": partial(reports.made_of, "steps_cuda")},
    "docs/performance.md": {name: partial(reports.made_of, name) for name in MEASURED},
    "docs/presets.md": {"presets": settings.of_presets},
    "docs/ways.md": {"ways": settings.ways},
}


def generated() -> dict[str, Callable[[], str]]:
    """Each document with generated parts, and what makes its text."""
    return {**{name: partial(filled, name) for name in DOCUMENTS}, "params.yaml": choices.params_file}


def filled(document: str) -> str:
    """The text of a document with its generated parts made anew. Raises ValueError if it lacks the marks of a part."""
    text = (PROJECT / document).read_text()
    for name, make in DOCUMENTS[document].items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not begin or not end:
            raise ValueError(f"{document}: no part {name}")
        text = f"{before}{begin}{make()}\n{end}{after}"
    return text
