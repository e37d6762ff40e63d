"""Stage `download`: images in class folders below data/images, or a list of images that stay where they are.

    perennial download

The images are unpacked from an archive, copied from the inbox, listed in a folder, drawn, or downloaded by torchvision
(`data.source`). The SHA-256 of an archive is checked before it is unpacked. An output appears only when it is complete.
A downloaded file is kept, so the stage runs again without a network.
"""

from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import without_secrets
from pipeline.base.text import in_words, visible
from pipeline.config.params import Params
from pipeline.sources import archive, fetch, originals, synthetic, torchvision_sets


def run(config: Params) -> None:
    folder = Path(config.paths.images)
    if config.data.source == "folder":
        list_images(config, folder)
        return
    origin = bring_images(config, folder)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    print(f"download: {len(sizes):,} files, {sum(sizes):,} bytes in {config.paths.images}, from {origin}")


def list_images(config: Params, images: Path) -> None:
    """Fill the folder `images` with the list of the files in paths.inbox. Raises UserError as `bring_images` does."""
    inbox = Path(config.paths.inbox)
    with files.atomic_folder(images) as folder:
        number, size = originals.write_manifest(inbox, folder, config.run.decoding_threads)
    print(f"download: {number:,} files, {size:,} bytes stay in {inbox}; {images / originals.MANIFEST} lists them")
    if links := [visible(str(path)) for path in originals.links(inbox) if path.is_dir()]:
        print(
            f"download: links to folders are followed ({in_words(links, 3)}), but DVC notices no change in them; "
            f"after such a change: perennial repro --force --single-item download, then perennial repro"
        )


def bring_images(config: Params, images: Path) -> str:
    """Fill the folder `images` from `data.source`; where the images come from, for the user.

    Raises UserError if they cannot be had, and leaves an earlier folder as it is.
    """
    data = config.data
    if data.source == "archive":
        path = fetch.obtain_archive(data.url, data.sha256, Path(config.paths.archives), archive.MAX_BYTES)
        with files.atomic_folder(images) as folder:
            archive.unpack(path, folder)
        return without_secrets(data.url)
    if data.source == "inbox":
        with files.atomic_folder(images) as folder:
            originals.copy_inbox(Path(config.paths.inbox), folder)
        return config.paths.inbox
    if data.source in torchvision_sets.SETS:
        with files.atomic_folder(images) as folder:
            torchvision_sets.write(data.source, folder, Path(config.paths.archives), config.run.decoding_threads)
        return data.source
    flowers = data.synthetic
    with files.atomic_folder(images) as folder:
        synthetic.draw(folder, flowers.count, flowers.size, 0, config.run.decoding_threads)
    return "synthetic flowers"
