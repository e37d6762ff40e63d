"""The model card: README.md beside the model. Every fact is computed from what the stages wrote."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pipeline.config.model_names import EXACT_MODELS, MODELS, PACKAGED, source_model
from pipeline.data import credits
from pipeline.dataset import squares
from pipeline.models import hub
from pipeline.reporting import rendering, result
from pipeline.reporting.audit import PARTS, Rows
from pipeline.reporting.facts import Facts
from pipeline.sources import torchvision_sets

MOST_ROWS = 100  # of a table of classes
MOST_MAKERS = 5000  # photographers in the list
FEW_IMAGES = 30  # in the test split: the figures of such a class say little


def card(facts: Facts, rows: Rows, export: Mapping[str, Any], file_hashes: Mapping[str, str]) -> str:
    """The text of the card. `rows`: of split.csv; `export`: export.json; `file_hashes`: file of the model → SHA-256."""
    model, outcome = facts.model.model, facts.outcome
    classes = result.class_rows(outcome.classes, outcome.counts)
    used_paths = [row.path for row in rows if not row.reason]
    used_credits = [facts.credits[path] for path in used_paths if path in facts.credits]
    makers = Counter(credits.without_address(credit).strip() for credit in used_credits)
    return rendering.card(
        "model_card.md.jinja",
        **vars(facts),
        public=torchvision_sets.SETS.get(facts.config.data.source),
        weights=facts.weights,
        packaged=PACKAGED.get(source_model(model)) if facts.config.train.weights == "imagenet" else None,
        pad_colour=squares.PAD_COLOUR,
        file_hashes=file_hashes,
        classes=classes,
        small_classes=[row.name for row in classes if row.images < FEW_IMAGES],
        few_images=FEW_IMAGES,
        max_rows=MOST_ROWS,
        parts=PARTS,
        divided_groups=sum(len({row.split for row in group}) > 1 for group in facts.audit.groups),
        used=len(used_paths),
        credited=len(used_credits),
        makers=sorted(makers.items()),
        max_makers=MOST_MAKERS,
        in_timm=bool(hub.timm_name(model)),
        in_transformers=hub.loads_in_transformers(model),
        in_torchvision=model in MODELS,
        is_exact=model in EXACT_MODELS,
        onnx_limit=export.get("probabilities_differ_less_than"),
    )
