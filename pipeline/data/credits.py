"""Credits: the photographer and the licence of each photo, from a licence file beside the photos."""

import re
from pathlib import Path


def credits(license_file: Path) -> dict[str, str]:
    """Path → credit, for each image that a LICENSE.txt in flower_photos' form lists; empty without this file.

    Such a line is `daisy/1.jpg CC-BY by A Name - https://…`; the credit is what follows the path. Other lines are
    ignored.
    """
    if not license_file.is_file():
        return {}
    lines = license_file.read_text(encoding="utf-8", errors="replace").splitlines()
    parts = (line.partition(" CC-BY ") for line in lines)
    return {path: f"CC-BY {credit.strip()}" for path, separator, credit in parts if separator}


def without_address(credit: str) -> str:
    """The credit without its web address."""
    return re.sub(r"( -)? https?://\S+( -)?", "", credit)


def address(credit: str) -> str:
    """The web address in a credit; empty if there is none."""
    match = re.search(r"https?://\S+", credit)
    return match[0] if match else ""
