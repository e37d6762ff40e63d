"""Every generated part of the documents, by its name. A part is between <!-- name --> and <!-- /name -->."""

from collections.abc import Callable, Mapping

from benchmarks.harness.measuring import RESULTS
from tests import test_ways
from tests.conftest import PROJECT
from tests.documents import figures, results
from tests.documents.phrases import READMES, Say, english

Parts = Mapping[str, Callable[[Say], str]]
OF_READMES: Parts = {
    "results": results.table,
    "figures": lambda say: figures.table(PROJECT / RESULTS, say),
    "ways": test_ways.table,
}
DOCUMENTS: dict[str, tuple[Say, Parts]] = {  # document → its language and its parts
    **{name: (say, OF_READMES) for name, say in READMES.items()},
    "docs/ways.md": (english, {"pairs": test_ways.pairs}),
}


def filled(document: str) -> str:
    """The text of a document with its generated parts made anew. Raises ValueError if it lacks the marks of a part."""
    text, (say, parts) = (PROJECT / document).read_text(), DOCUMENTS[document]
    for name, make in parts.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"\n<!-- /{name} -->")
        if not begin or not end:
            raise ValueError(f"{document}: no part {name}")
        text = f"{before}{begin}{make(say)}{end}{after}"
    return text
