"""The model card: README.md beside the model. Every fact is computed from what the stages wrote."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pipeline.config.model_names import TIMM
from pipeline.data import credits
from pipeline.models import hub
from pipeline.reporting import rendering, result
from pipeline.reporting.audit import PARTS, Rows
from pipeline.reporting.facts import Facts

MOST_ROWS = 100  # of a table of classes
MOST_CREDITED = 5000  # photographers
FEW_IMAGES = 30  # in the test split: the figures of such a class say little


def card(facts: Facts, rows: Rows, export: Mapping[str, Any], hashes: Mapping[str, str]) -> str:
    """The whole card. `rows`: of split.csv; `export`: export.json; `hashes`: the SHA-256 of each file of the model."""
    model, outcome = facts.model.model, facts.outcome
    classes = result.class_rows(outcome.classes, outcome.counts)
    used = [row["path"] for row in rows if not row["reason"]]
    named = [facts.credits[path] for path in used if path in facts.credits]
    makers = Counter(credits.without_address(credit).strip() for credit in named)
    return rendering.card(
        "model_card.md.jinja",
        config=facts.config,
        model=facts.model,
        outcome=outcome,
        audit=facts.audit,
        settings=facts.settings,
        packages=facts.packages,
        weights=facts.weights,
        hashes=hashes,
        tested=len(outcome.answers),
        right=int(outcome.counts.trace()),
        classes=classes,
        few=[row.name for row in classes if row.images < FEW_IMAGES],
        few_images=FEW_IMAGES,
        most=MOST_ROWS,
        parts=PARTS,
        used=len(used),
        credited=len(named),
        makers=sorted(makers.items()),
        most_credited=MOST_CREDITED,
        in_timm=bool(hub.timm_name(model)),
        in_transformers=hub.loads_in_transformers(model),
        in_torchvision=not model.startswith(TIMM),
        theirs=export.get("preprocessing_of_others"),
        onnx_limit=export.get("probabilities_differ_less_than"),
    )
