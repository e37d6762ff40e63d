"""Stage `card`: README.md beside the model, which the Hugging Face Hub shows as the model's page.

    python -m pipeline card        reads what the other stages wrote; writes models/README.md

The same inputs give the same card: no time, no host, no path.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

from pipeline.base import files, schema
from pipeline.cards import parts
from pipeline.cards.facts import Facts
from pipeline.config.params import Params
from pipeline.data import credits, originals, split_table
from pipeline.models import description, hub
from pipeline.reporting import audit, outcome
from pipeline.reporting.audit import Rows
from pipeline.stages import frame

FILE = "README.md"
FOLDER = ("model.safetensors", "model.json", hub.FILE, "model.onnx")


def groups_apart(rows: Rows) -> int:
    """The number of groups of images that are in more than one part."""
    parts_of: dict[str, set[str]] = {}
    for row in rows:
        if row["group"] and row["split"]:
            parts_of.setdefault(row["group"], set()).add(row["split"])
    return sum(len(found) > 1 for found in parts_of.values())


def run(config: Params) -> None:
    """Write the card. Raises UserError if an input is missing or damaged."""
    paths = config.paths
    models, measured = Path(paths.models), Path(paths.metrics)
    model, rows = description.load(models), split_table.all_rows(Path(paths.split))
    exported = measured / "export.json"
    facts = Facts(
        config=config,
        model=model,
        outcome=outcome.read(measured, model.classes, model.epoch),
        audit=audit.of(rows),
        credits=credits.credits(Path(paths.images) / originals.LICENSE),
        used=tuple(row["path"] for row in rows if not row["reason"]),
        groups_apart=groups_apart(rows),
        export=schema.json_of(exported, dict[str, Any], schema.checkout(exported)),
        hashes={name: files.sha256(models / name) for name in FOLDER},
    )
    files.write_text(models / FILE, parts.card(facts))
    print(f"card: {models / FILE} describes the model; the Hugging Face Hub shows it")


def main(_: Namespace) -> int:
    return frame.run_stage("card", run)
