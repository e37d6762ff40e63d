"""Credits of photos, from a licence file beside them."""

import re
import tarfile
from pathlib import Path

from pipeline.data import credits


def test_credits_of_real_photos(mini: Path, tmp_path: Path) -> None:
    """Every photo of flower_photos has its photographer's credit, whichever way round its line is written."""
    with tarfile.open(mini) as archive:
        photos = [name.partition("/")[2] for name in archive.getnames() if name.endswith(".jpg")]
        licence = archive.extractfile("flower_photos/LICENSE.txt")
        assert licence is not None
        (tmp_path / "LICENSE.txt").write_bytes(licence.read())
    found = credits.credits(tmp_path / "LICENSE.txt")
    assert set(found) == set(photos)
    assert len(photos) == 735
    bruce = found["dandelion/14283011_3e7452c5b2_n.jpg"]
    assert bruce == "CC-BY https://www.flickr.com/photos/67114894@N00/ - by Bruce"
    assert credits.without_address(bruce) == "CC-BY by Bruce"
    assert credits.address(bruce) == "https://www.flickr.com/photos/67114894@N00/"
    for credit in found.values():
        assert re.fullmatch(r"CC-BY by .+", credits.without_address(credit))
        assert "http" not in credits.without_address(credit)
        assert re.fullmatch(r"https?://\S+", credits.address(credit))


def test_no_licence_file_credits_nobody(tmp_path: Path) -> None:
    """Images without a LICENSE.txt have no credits, and a credit may have no address."""
    assert credits.credits(tmp_path / "LICENSE.txt") == {}
    assert credits.address("CC-BY by Zoë") == ""
