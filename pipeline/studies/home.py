"""The page reports/home.html: every page of the folder, with what each says first, and its first photo.

No stage writes this page, and nothing hashes it. So it names the commit, and the folder of the photos.
"""

import html
import re
from pathlib import Path

from pipeline.base import files
from pipeline.config.params import Params
from pipeline.reporting import rendering
from pipeline.reporting.thumbnails import NO_PICTURE, Thumbnail
from pipeline.versioning import programs

PAGE, REPORT = "home.html", "index.html"
HEAD = re.compile(r'<meta name="description" content="(.*?)">\n<title>(.*?)</title>', re.DOTALL)  # of page.html.jinja
PHOTO = re.compile(r'<img src="(data:image/jpeg;base64,[\w+/=]+)" width="(\d+)" height="(\d+)"')  # of parts.html.jinja


def write_page(config: Params, name: str, text: str) -> Path:
    """Write a page of a study into the folder of reports, and the list of all pages. Returns the path of the page."""
    path = Path(config.paths.reports) / name
    files.write_text(path, text)
    write(config)
    return path


def write(config: Params) -> Path:
    """Write the list of all pages in the folder of reports: the report first, then by name. Returns its path."""
    folder = Path(config.paths.reports)
    names = sorted((path.name for path in folder.glob("*.html") if path.name != PAGE), key=lambda n: (n != REPORT, n))
    photos = Path(config.paths.inbox) if config.data.source == "folder" else Path.cwd()
    page = rendering.page(
        "home.html.jinja",
        photos=photos.name,
        commit=programs.last_commit() or "none",
        pages=[(name, *_head(folder / name)) for name in names],
    )
    files.write_text(folder / PAGE, page)
    return folder / PAGE


def _head(path: Path) -> tuple[str, str, Thumbnail]:
    """The title of a page, what it says first, and its first photo. Of a page of others, only the name is known."""
    text = path.read_text(encoding="utf-8", errors="replace")
    found, photo = HEAD.search(text), PHOTO.search(text)
    if not found:
        return path.name, "", NO_PICTURE
    title, said = html.unescape(found[2]), html.unescape(found[1]).replace("\n", " ")
    return title, said, Thumbnail(photo[1], int(photo[2]), int(photo[3])) if photo else NO_PICTURE
