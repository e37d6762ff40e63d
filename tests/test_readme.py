"""The README's table of results is made from committed figures.

python -m tests.test_readme        writes it anew
"""

import json
import re
from pathlib import Path

from tests.conftest import PROJECT, read_params

BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- /results -->)", re.DOTALL)
RUNS = {
    "demo": "`make demo`: drawn flowers",
    "flower_photos_mini": "flower_photos, one fifth",
    "flower_photos": "flower_photos, all",
}


def row(name: str, title: str) -> str:
    """One run as a row: its data, model, settings and figures."""
    folder = PROJECT / "results" / name
    train = read_params(folder / "params.yaml")["train"]
    data, figures = (json.loads((folder / "metrics" / f).read_text()) for f in ("data.json", "eval.json"))
    low, high = figures["interval"]["low"], figures["interval"]["high"]
    return (
        f"| {title} | {data['kept']:,} | {train['model']}, {train['crop']} pixels, {train['epochs']} epochs "
        f"| {figures['accuracy']:.3f} ({low:.3f} to {high:.3f}, {figures['images']} images) |"
    )


def table() -> str:
    """The table of results in README.md."""
    head = "| data | images | trained from scratch | test accuracy (95 % interval) |\n|---|---|---|---|\n"
    return head + "\n".join(row(name, title) for name, title in RUNS.items())


def test_the_readme_has_the_results() -> None:
    """README.md's table of results is the one made here."""
    found = BLOCK.search((PROJECT / "README.md").read_text())
    assert found is not None
    assert found.group().strip() == table(), "run: python -m tests.test_readme"


def test_the_readme_names_files_that_are_there() -> None:
    """Every relative link of the README leads to a file of the project."""
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", (PROJECT / "README.md").read_text()):
        assert Path(PROJECT / target).exists(), target


def test_the_rings_of_tests_are_documented_and_ci_runs_the_second() -> None:
    """Each is one command of the README, with its time or what it needs; .ci/run is the README's, word for word."""
    documented = dict(re.findall(r"^(make test\S*) +# (.+)$", (PROJECT / "README.md").read_text(), re.MULTILINE))
    assert list(documented) == ["make test", "make test-all", "make test-gpu"]
    assert "minutes" in documented["make test"]
    assert "minutes" in documented["make test-all"]
    (command,) = (line for line in (PROJECT / ".ci/run").read_text().splitlines() if line.startswith("make "))
    assert command == "make test-all"


if __name__ == "__main__":
    readme = PROJECT / "README.md"
    readme.write_text(BLOCK.sub(lambda _: table() + "\n", readme.read_text()))
