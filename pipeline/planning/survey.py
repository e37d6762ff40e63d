"""Counts the images that a run would use, without decoding them."""

import importlib.util
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base import files
from pipeline.base.text import visible
from pipeline.config.params import Params, Split
from pipeline.data import corrections, folders, formats, splitting
from pipeline.data.splitting import Cut
from pipeline.dataset.split_table import SPLITS
from pipeline.sources import originals, torchvision_sets
from pipeline.sources.user_table import Table

NO_SPLIT = Cut("", SPLITS)  # no image has a given split
SYNTHETIC_CLASSES = 5  # of data.source: synthetic; a test compares it


@dataclass(frozen=True)
class Survey:
    """The images of a data set, as far as they are known before a run."""

    where: str  # in words, for messages
    classes: int
    split_counts: Mapping[str, int]  # split → images for which the layout gives it; "": for which it gives none
    cut: Cut = NO_SPLIT
    files: tuple[Path, ...] = ()  # the images that are on this machine
    notes: tuple[str, ...] = ()  # what the user may not expect of the layout
    sizes: Mapping[str, int] = field(default_factory=dict)  # class → images, if they are counted

    @property
    def images(self) -> int:
        """The number of images; 0 if it is not known before they are downloaded."""
        return sum(self.split_counts.values())

    def parts(self, settings: Split) -> dict[str, int]:
        """The images of train, val and test: as the layout gives them, the others about as `settings` says."""
        share = splitting.shares(settings)
        free = self.split_counts.get(self.cut.given_split, 0) if self.cut.splits else 0
        cut_counts = {split: round(free * share[split]) for split in self.cut.splits if split != "train"}
        cut_counts["train"] = free - sum(cut_counts.values())
        layout_counts = {split: self.split_counts.get(split, 0) for split in SPLITS}
        if free:
            layout_counts[self.cut.given_split] = 0
        return {split: layout_counts[split] + cut_counts.get(split, 0) for split in SPLITS}


# For an estimate before an image is here: the numbers of flower_photos, the default of data.url.
EXAMPLE = Survey("flower_photos", 5, {"": 3670})


def survey(config: Params) -> Survey:
    """The images that these params use. Raises UserError for a folder that `split` would refuse."""
    if config.data.source == "synthetic":
        return Survey("flowers that are drawn", SYNTHETIC_CLASSES, {"": config.data.synthetic.count})
    if public := torchvision_sets.SETS.get(config.data.source):
        missing_splits = tuple(split for split in SPLITS if split not in public.images)
        cut = Cut("train", ("train", *missing_splits) if missing_splits else ())
        return Survey(f"{config.data.source}, which torchvision downloads", public.classes, public.images, cut)
    inbox, images = Path(config.paths.inbox), Path(config.paths.images)
    if config.data.source == "folder" or (config.data.source == "inbox" and not is_empty(inbox)):
        return survey_folder(inbox, corrections.read())
    if images.is_dir() and not (images / originals.MANIFEST).is_file():  # it would list the images of another source
        return survey_folder(images, corrections.read())
    return Survey("in an archive that is not downloaded yet (data.url)", 0, {})


def survey_folder(folder: Path, table: Table = corrections.NONE) -> Survey:
    """The images in a folder, with the corrections of `table`, and with any layout that `split` understands.

    Raises UserError for what `split` would refuse: another layout, corrections of other images, and classes with too
    few images.
    """
    if not folder.is_dir():
        raise originals.no_inbox(folder, "set it to the folder with your images")
    layout = folders.interpret(str(folder), originals.list_entries(folder), lambda name: (folder / name).read_bytes())
    corrected_layout = corrections.apply(table, layout)
    layout = corrected_layout.layout
    photos = [
        file
        for file in layout.image_files
        if file.path not in corrected_layout.reasons and Path(file.path).suffix.lower() not in formats.COMPANIONS
    ]
    cut = splitting.find_cut(layout.image_files)
    splitting.check_class_sizes(layout.classes, photos, cut)
    return Survey(
        where=str(folder),
        classes=len(layout.classes),
        split_counts=Counter(file.given_split for file in photos),
        cut=cut,
        files=tuple(folder / file.path for file in photos),
        notes=(*layout.notes, *without_decoder([file.path for file in photos])),
        sizes=Counter(file.label for file in photos),
    )


def without_decoder(paths: Sequence[str]) -> list[str]:
    """What is said of HEIC files, by their names, if their decoder is not installed."""
    found = [path for path in paths if path.lower().endswith((".heic", ".heif"))]
    if not found or importlib.util.find_spec("pillow_heif"):
        return []
    where = f"{formats.HEIC} is left out: {len(found):,} of {len(paths):,} images (first: {visible(found[0])})"
    return [f"{where}; {formats.INSTALL_HEIC}"]


def is_empty(inbox: Path) -> bool:
    """Whether the inbox has no images: it is missing, or has only files of `dvc add`."""
    return all(originals.is_from_dvc_add(path, inbox) for path in files.visible(inbox))
