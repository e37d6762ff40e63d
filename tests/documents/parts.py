"""Every generated part of the documents, by its name. A part is between <!-- name --> and <!-- /name -->."""

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.harness.measuring import RESULTS
from tests.conftest import PROJECT
from tests.documents import choices, figures, fits, results, studies, tables, ways
from tests.documents.phrases import READMES

DOCUMENTS: Mapping[str, Mapping[str, Callable[[], str]]] = {  # document → its parts
    **{name: {"results": partial(results.table, say)} for name, say in READMES.items()},
    "docs/apex.md": {"steps": tables.steps},
    "docs/data.md": {"fit": fits.fits},
    "docs/folds.md": {"recipes": results.recipes, "unknown": studies.unknown, "curve": studies.curve},
    "docs/performance.md": {
        "figures": partial(figures.table, PROJECT / RESULTS),
        "launches": tables.launches,
        "arithmetic": tables.arithmetic,
        "state": tables.state,
        "scale": tables.scale,
    },
    "docs/presets.md": {
        "cpu": partial(tables.recipes, tables.OF_CPU),
        "gpu": partial(tables.recipes, tables.OF_GPU),
    },
    "docs/reproducibility.md": {"price": tables.elastic_price},
    "docs/reproducibility-catalogue.md": {
        "cost": tables.elastic_cost,
        "accuracy": tables.elastic_accuracy,
    },
    "docs/ways.md": {"ways": ways.table, "pairs": ways.pairs},
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
