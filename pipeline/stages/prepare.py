"""Stage `prepare`: decode every image of kept.csv once, make it a square and pack it, so that training never decodes.

perennial prepare       reads data/images and data/kept.csv; writes data/packed (dataset/packed.py)
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.base import files, linux, threads
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import images
from pipeline.dataset import packed, split_table
from pipeline.dataset.split_table import ImageRow
from pipeline.sources import originals
from pipeline.sources.originals import Originals


def prepare(source: Originals, kept_csv: Path, output: Path, settings: params.Prepare, workers: int) -> int:
    """Pack the images of `kept_csv`, files of `source`, into the folder `output`. Returns their number.

    The bytes are the same for any number of workers. Raises UserError if an image is missing or broken.
    """
    rows, size = split_table.all_rows(kept_csv, split_table.PACKED_COLUMNS), settings.size

    def resize(row: ImageRow) -> NDArray[np.uint8]:
        path, sha256 = source.file(row.path)
        try:
            return images.square_and_size(path, size, settings.grey, sha256, settings.fit)[0]
        except FileNotFoundError:
            raise originals.missing_image(path) from None

    with files.atomic_folder(output) as partial:
        resized = threads.ordered_map(resize, rows, workers, "prepare", result_bytes=3 * size**2)
        packed.write(partial, resized, len(rows), size, settings.fit)
    return len(rows)


def run(config: Params) -> None:
    linux.share_freed_memory()
    paths, size = config.paths, config.prepare.size
    source = originals.locate(Path(paths.images), Path(paths.inbox))
    count = prepare(source, Path(paths.kept), Path(paths.packed), config.prepare, config.run.decoding_threads)
    print(f"prepare: {count:,} images of {size} × {size} pixels in {paths.packed}")
