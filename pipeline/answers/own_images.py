"""The project's own images, by data/split.csv: those of a part, and their copies elsewhere."""

from collections.abc import Collection
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Params
from pipeline.dataset import split_table
from pipeline.sources import originals


def of_split(split: str, config: Params) -> dict[str, str]:
    """The file of each image of this part → its class in split.csv. Raises UserError without an image."""
    path, images, inbox = (Path(getattr(config.paths, name)) for name in ("split", "images", "inbox"))
    root = originals.locate(images, inbox).root
    labels = {str(root / row.path): row.label for row in split_table.kept_rows(path) if row.split == split}
    if not labels:
        raise UserError(Fault("--split", split, "missing", f"{path} has no image of it", remedy="name another part"))
    return labels


def known(paths: Collection[str], splits: Collection[str], config: Params) -> set[str]:
    """Those of these files that have the bytes of an image of these parts; none if there is no split.csv."""
    split_csv, folder, inbox = (Path(getattr(config.paths, name)) for name in ("split", "images", "inbox"))
    if not (paths and split_csv.is_file()):
        return set()
    sizes = {Path(path).stat().st_size for path in paths}
    source = originals.locate(folder, inbox if inbox.is_dir() else folder)  # a manifest has the hashes of a lost inbox

    def sha256(name: str) -> str:
        file = source.root / name  # a file of another size is not read
        return files.sha256(file) if file.is_file() and file.stat().st_size in sizes else ""

    rows = [row for row in split_table.kept_rows(split_csv) if row.split in splits]
    hashes = {source.hashes.get(row.path) or sha256(row.path) for row in rows}
    return {path for path in paths if files.sha256(Path(path)) in hashes}
