"""Findings about image files that a person should know, though each file is usable: their counts and remedies."""

from collections.abc import Iterator, Sequence

from pipeline.data import decoders, formats
from pipeline.data.decoders import UNSUPPORTED
from pipeline.data.images import ImageInfo
from pipeline.dataset.split_table import BY_HAND

InspectedFiles = Sequence[tuple[str, ImageInfo]]  # the path and the info of each file


def counts(infos: Sequence[ImageInfo]) -> dict[str, int]:
    """The numbers for findings.csv: files with more than one image, and 16-bit grey far below the full scale."""
    return {
        "files_of_several_images": sum(info.has_more for info in infos),
        "dark_16_bit": sum(info.is_dark for info in infos),
    }


def lines(inspected_files: InspectedFiles) -> Iterator[str]:
    """The findings, in lines; each names the first file."""
    if several := [path for path, info in inspected_files if info.has_more]:
        yield f"several images in one file (pages, frames), the first is used: {len(several):,} (first: {several[0]})"
    if dark := [path for path, info in inspected_files if info.is_dark]:
        yield (
            f"16-bit grey, nearly black (below an eighth of the full scale, as 12-bit data is): {len(dark):,} "
            f"(first: {dark[0]}); prepare.grey: minmax scales each image by its own values"
        )
    yield from remedies(inspected_files)
    if any(info.reason == decoders.NO_HEIF for _, info in inspected_files):
        yield (
            "DVC does not see which packages are installed; after an installation, let split run again: "
            "perennial repro --force --single-item split"
        )


def remedies(inspected_files: InspectedFiles) -> Iterator[str]:
    """A line for each format that is not decoded: how to convert its images."""
    for reason in sorted({info.reason for _, info in inspected_files if info.reason.startswith(f"{UNSUPPORTED}: ")}):
        yield f"{reason}: {formats.remedy(reason.removeprefix(f'{UNSUPPORTED}: '))}"


def lost_images(inspected_files: InspectedFiles) -> list[tuple[str, str]]:
    """Path and reason of each image that cannot be used: no video or sidecar, and no file that a person excluded."""
    return [
        (path, info.reason)
        for path, info in inspected_files
        if info.reason and decoders.kind(info.reason) not in (decoders.COMPANION, BY_HAND)
    ]
