"""Who made a photo: credits from a licence file beside the photos."""

import re
from pathlib import Path


def credits(license_file: Path) -> dict[str, str]:
    """Licence and photographer of every image that a LICENSE.txt in flower_photos' form lists, by path.

    Such a line reads `daisy/1.jpg CC-BY by A Name - https://…`; the credit is what follows the path. Other lines, and
    a missing file, credit nobody.
    """
    if not license_file.is_file():
        return {}
    lines = license_file.read_text(encoding="utf-8", errors="replace").splitlines()
    parts = (line.partition(" CC-BY ") for line in lines)
    return {path: f"CC-BY {credit.strip()}" for path, found, credit in parts if found}


def without_address(credit: str) -> str:
    """The credit without its web address."""
    return re.sub(r"( -)? https?://\S+( -)?", "", credit)


def address(credit: str) -> str:
    """The web address in a credit; empty if there is none."""
    found = re.search(r"https?://\S+", credit)
    return found[0] if found else ""
