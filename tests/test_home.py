"""The list of all pages, which every command that writes a page writes anew."""

import json
import subprocess
from pathlib import Path

from pipeline.answers import gallery_page
from pipeline.answers.classify import Request
from pipeline.base import files
from pipeline.config.params import Params
from pipeline.studies import home
from tests import test_pair
from tests.helpers.pages import Element, parsed


def listed(folder: Path) -> Element:
    return parsed((folder / "reports/home.html").read_text())


def test_each_page_is_listed_with_what_it_says_first(here: Path) -> None:
    """The report first, also pages of others; the photos and the commit are named; a study's page links to the list."""
    config = Params()
    config = config.model_copy(
        update={
            "data": config.data.model_copy(update={"source": "folder"}),
            "paths": config.paths.model_copy(update={"inbox": "/far/<away>"}),
        }
    )
    home.write(config)
    assert listed(here).all("h3") == []
    head = gallery_page.page([], config, Request(()), set())
    head = head.replace('content="0 images, classified"', 'content="two\nlines &amp; more"')
    files.write_text(here / "reports/index.html", head)
    files.write_text(here / "reports/ä ?.html", "<title>no page of the project</title>")
    for command in ("init --quiet", "-c user.name=a -c user.email=a commit --quiet --allow-empty --message=a"):
        subprocess.run(["git", *command.split()], check=True)
    path = home.write_page(config, "compare.html", test_pair.page())
    root = listed(here)
    assert root.one("h1").text == "<away>"
    links = [(one.text, one.attributes["href"]) for one in root.one("main").all("a")]
    assert links == [
        ("0 images, classified", "index.html"),
        (f"HEAD and {test_pair.HOSTILE}", "compare.html"),
        ("ä ?.html", "%C3%A4%20%3F.html"),
    ]
    said = [one.text for one in root.one("main").all("p")]
    assert said[:3] == ["two lines & more", f"No: {test_pair.TEST[1]}", ""]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert root.one("main").all("code")[-1].text == commit
    back = [one for one in parsed(path.read_text()).one("nav").all("a") if one.attributes["href"] == "home.html"]
    assert len(back) == 1


def test_a_run_ends_with_the_list(finished: Path) -> None:
    """`perennial repro` writes it: the report, with its accuracy and first photo, under the name of the project."""
    root = listed(finished)
    assert [one.attributes["href"] for one in root.one("main").all("a")] == ["index.html"]
    accuracy = json.loads((finished / "metrics/eval.json").read_text())["accuracy"]
    assert root.one("main").all("p")[0].text.startswith(f"{100 * accuracy:.1f}\u00a0% of ")
    assert root.one("h1").text == finished.name
    photo = parsed((finished / "reports/index.html").read_text()).all("img")[0]
    assert [one.attributes["src"] for one in root.all("img")] == [photo.attributes["src"]]
