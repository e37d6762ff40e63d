"""Stage `card`: README.md beside the model, which the Hugging Face Hub shows as the model's page.

    perennial card        reads what the other stages wrote; writes models/README.md

The same inputs give the same card: no time, no host, no path.
"""

from pathlib import Path
from typing import Any

from pipeline.base import files, schema
from pipeline.config.params import Params
from pipeline.dataset import split_table
from pipeline.evaluation import acceptance
from pipeline.models import hub
from pipeline.reporting import facts, model_card
from pipeline.versioning import identity

FILE = "README.md"
FOLDER = ("model.safetensors", "model.json", hub.FILE, acceptance.FILE, "model.onnx")


def run(config: Params) -> None:
    """Write the card. Raises UserError if an input is missing or damaged."""
    paths = config.paths
    models, exported = Path(paths.models), Path(paths.metrics) / "export.json"
    rows = split_table.all_rows(Path(paths.split))
    export = schema.json_of(exported, dict[str, Any], schema.checkout(exported))
    hashes = {name: files.sha256(models / name) for name in FOLDER}
    files.write_text(
        models / FILE,
        model_card.card(facts.read(config, identity.settings(config, ["report"]), rows), rows, export, hashes),
    )
    print(f"card: {models / FILE} describes the model; the Hugging Face Hub shows it")
