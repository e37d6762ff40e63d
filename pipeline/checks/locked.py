"""Compares the installed packages with the locked ones."""

import importlib.metadata
import re
from collections.abc import Mapping

REMEDY = "install the locked versions: make -B setup, or make image for the container"
HEADER = re.compile(r"^(Name|Version):\s*(\S+)", re.MULTILINE)  # a line of a package's metadata


def versions(text: str) -> dict[str, str]:
    """Name → version of each package in the text of a lock."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def installed() -> dict[str, str]:
    """Name → version of each package that Python finds; of two with one name, of the first on sys.path.

    `package.version` would parse the whole metadata of each package, which takes ten times as long [measured].
    """
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
        header = dict(reversed(HEADER.findall(text)))  # the first line of each counts
        if len(header) == 2:
            found.setdefault(canonical_name(header["Name"]), header["Version"])
    return found


def canonical_name(name: str) -> str:
    """A package's name in lower case with single hyphens, as Python's packaging tools compare names (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def differences(needed: Mapping[str, str]) -> list[str]:
    """What is said of each of these packages (name → version) that is missing, or is installed in another version."""
    present = installed()
    return [
        f"{name} {present.get(name, 'missing')} (locked: {version})"
        for name, version in sorted(needed.items())
        if present.get(name) != version
    ]
