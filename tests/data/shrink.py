"""Write the photos of tests/data/flower_photos: those that its LICENSE.txt names, from an archive of flower_photos.

python -m tests.data.shrink flower_photos.tgz
"""

import io
import sys
import tarfile
from pathlib import Path

from PIL import Image

from pipeline.data import credits

FOLDER = Path(__file__).parent / "flower_photos"
SIDE, QUALITY = 240, 85  # forty photos are then below 1 MB


def shrink(content: bytes) -> bytes:
    """A photo as a JPEG whose shorter side has at most SIDE pixels. The same content gives the same bytes."""
    with Image.open(io.BytesIO(content)) as photo:
        factor = min(1.0, SIDE / min(photo.size))
        width, height = (round(side * factor) for side in photo.size)
        small = photo.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def main() -> None:
    with tarfile.open(sys.argv[1]) as archive:
        for name in credits.credits(FOLDER / "LICENSE.txt"):
            member = archive.extractfile(f"flower_photos/{name}")
            assert member is not None, name
            (FOLDER / name).parent.mkdir(exist_ok=True)
            (FOLDER / name).write_bytes(shrink(member.read()))


if __name__ == "__main__":
    main()
