"""Wheels for tests of installations."""

import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, *libraries: str) -> Path:
    """A wheel of version 1 with a module of this name and with libraries."""
    path, info = folder / f"{name}-1-py3-none-any.whl", f"{name}-1.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for library in libraries:
            archive.writestr(library, "with symbols")
        archive.writestr(f"{name}/__init__.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path
