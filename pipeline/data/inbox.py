"""Copies the images that a user put into the inbox."""

import shutil
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
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
        raise folders.no_inbox(inbox, layout)
    images = 0
    for path in sorted(inbox.rglob("*")):
        relative = path.relative_to(inbox)
        if files.is_junk(relative) or folders.is_from_dvc_add(path, inbox):
            continue
        folders.check_name(path, relative.as_posix())
        if path.is_symlink():
            remedy = "copy its target there instead"
            raise UserError(Fault(str(path), "a symbolic link", "value", allowed="files and folders", remedy=remedy))
        if path.is_dir():
            (folder / relative).mkdir()
        elif not path.is_file():
            raise folders.not_a_file(path)
        else:
            shutil.copyfile(path, folder / relative)
            images += len(relative.parts) > 1 or relative.name == labels.NAME
    if not images:
        raise folders.no_inbox(inbox, layout, "it has no class folder with a file in it")
