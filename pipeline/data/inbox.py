"""Copies the images that a user put into the inbox."""

import shutil
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.data import folders, labels


def copy(inbox: Path, folder: Path) -> None:
    """Copy everything in the inbox into an empty folder, without junk.

    Raises UserError if there is neither a class folder nor a table labels.csv, for a link, for anything else than files
    and folders, and for a name that is not UTF-8.
    """
    layout = (
        f"put images into {inbox}/<class>/ (or {inbox}/train/<class>/, and the same for val and test; or anywhere in "
        f"it, with a table {inbox}/{labels.NAME}); in a clone: dvc pull, if the photos were added with "
        f"dvc add {inbox}/*; without the photos: dvc repro --downstream split"
    )
    if not inbox.is_dir():
        raise UserError(f"paths.inbox: {inbox} is not a folder; {layout}")
    images = 0
    for path in sorted(inbox.rglob("*")):
        relative = path.relative_to(inbox)
        if files.is_junk(relative) or folders.is_from_dvc_add(path, inbox):
            continue
        _check(path, relative)
        if path.is_dir():
            (folder / relative).mkdir()
        else:
            shutil.copyfile(path, folder / relative)
            images += len(relative.parts) > 1 or relative.name == labels.NAME
    if not images:
        raise UserError(f"paths.inbox: {inbox} has no class folder with a file in it; {layout}")


def _check(path: Path, relative: Path) -> None:
    """Raise UserError for anything else than a file or folder with a name in UTF-8."""
    if path.is_symlink():
        raise UserError(f"{path}: a symbolic link; allowed: files and folders; copy its target there instead")
    if not (path.is_file() or path.is_dir()):
        raise UserError(f"{path}: neither a file nor a folder; allowed: files and folders; remove it")
    try:
        str(relative).encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{str(path)!r}: not named in UTF-8; rename it") from None
