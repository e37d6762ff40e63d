"""Compares the installed packages with the locked ones."""

import importlib.metadata
import re
from collections.abc import Mapping


def versions(text: str) -> dict[str, str]:
    """Name → version of each package in the text of a lock."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


def installed() -> dict[str, str]:
    """Name → version of each package that Python finds."""
    return {canonical_name(package.name): package.version for package in importlib.metadata.distributions()}


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
