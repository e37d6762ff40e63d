"""Credits of photos, from a licence file beside them."""

import re
from pathlib import Path

from pipeline.data import credits


def test_credits_of_real_photos(photos: Path) -> None:
    """Every photo of flower_photos has its photographer's credit, whichever way round its line is written."""
    by_path = credits.credits(photos / "LICENSE.txt")
    assert set(by_path) == {str(path.relative_to(photos)) for path in photos.rglob("*.jpg")}
    assert len(by_path) == 40
    bruce = by_path["dandelion/14283011_3e7452c5b2_n.jpg"]
    assert bruce == "CC-BY https://www.flickr.com/photos/67114894@N00/ - by Bruce"
    assert credits.without_address(bruce) == "CC-BY by Bruce"
    assert credits.address(bruce) == "https://www.flickr.com/photos/67114894@N00/"
    for credit in by_path.values():
        assert re.fullmatch(r"CC-BY by .+", credits.without_address(credit))
        assert "http" not in credits.without_address(credit)
        assert re.fullmatch(r"https?://\S+", credits.address(credit))


def test_no_licence_file_credits_nobody(tmp_path: Path) -> None:
    """Images without a LICENSE.txt have no credits, and a credit may have no address."""
    assert credits.credits(tmp_path / "LICENSE.txt") == {}
    assert credits.address("CC-BY by Zoë") == ""
