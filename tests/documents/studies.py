"""The tables of docs/folds.md on classes that are left out, and on the share of the training images."""

import json
from pathlib import Path
from typing import Any

from tests.conftest import PROJECT
from tests.documents.tables import table

FOLDER = Path("results/unknown")
SCORES = ("highest_probability", "highest_logit", "energy")


def read(name: str) -> Any:
    """A record of the folder; empty until it is there."""
    path = PROJECT / FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def percent(count: float, low: float, high: float) -> str:
    """A share with its interval."""
    return f"{100 * count:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def share(part: dict[str, Any]) -> str:
    """A share of metrics.Share, with its interval."""
    return percent(part["count"] / part["images"], part["low"], part["high"])


def unknown() -> str:
    """A row for each class that was left out, and the coverage over all folds."""
    study, folds = read("leave_out"), read("folds")
    if not study or not folds:
        return ""
    titles = (
        "left out | its images recognized as none (95 % interval) | test images of known classes accepted | AUROC: "
    )
    rows = [
        (
            f"`{row['without']}`" if row["without"] else "all together",
            f"{share(row['recognized'])} of {row['recognized']['images']:,}",
            f"{share(row['accepted'])} of {row['accepted']['images']:,}",
            *(f"{row['auroc'][score]:.3f}" for score in SCORES),
        )
        for row in (*study["classes"], study["total"])
    ]
    head = titles + " | ".join(score.replace("_", " ") for score in SCORES)
    images = folds["accepted"]["images"]
    return (
        f"{table(head, rows)}\n\nOver all folds, {share(folds['accepted'])} of the {images:,} test images are "
        f"accepted. Asked for: {100 * folds['asked']:g} %."
    )


def curve() -> str:
    """A row for each share of the training images, and what the last doubling brought."""
    if not (study := read("curve")):
        return ""
    rows = [
        (
            f"{100 * row['share']:.0f} %",
            f"{row['training_images']:,}",
            percent(row["accuracy"], row["low"], row["high"]),
        )
        for row in study["points"]
    ]
    last = study["last_doubling"]
    text = table(f"share | training images | accuracy on the same {study['images']:,} images (95 % interval)", rows)
    return (
        f"{text}\n\nThe last doubling brought {last['points']:+.1f} points (95 % interval {last['low']:+.1f} to "
        f"{last['high']:+.1f})."
    )
