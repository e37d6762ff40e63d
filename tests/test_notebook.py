"""A project from Python: `import perennial`, and the notebook of the documents."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.harness import workspace
from pipeline.sources import synthetic
from tests.conftest import PROJECT
from tests.helpers.browser import needs_chromium
from tests.helpers.projects import call, commit
from tests.helpers.trainings import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def command(code: str) -> tuple[list[str], dict[str, str]]:
    """Python with this code, for which `import perennial` finds the module that `make setup` installs; variables."""
    environ = {**os.environ, "PYTHONPATH": str(PROJECT / "requirements")}
    return [sys.executable, "-c", f"import sys, perennial\nproject = perennial.Project('roses')\n{code}"], environ


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run this code in a folder."""
    words, environ = command(code)
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, check=False)


PROGRAM = """
import ctypes, json, os, signal, sys, time
assert os.environ["PERENNIAL_PARENT"] == str(os.getppid())
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # as pipeline/base/linux.py does for this variable
if sys.argv[1] == "predict":
    sys.exit(print(json.dumps(sys.argv[2:])))
print(*sys.argv[1:], flush=True)
print("why", file=sys.stderr)
def stop(number, _):
    open("saved", "w").write(signal.Signals(number).name)
    sys.exit(75)
if sys.argv[1] == "repro":
    signal.signal(signal.SIGINT, stop), signal.signal(signal.SIGTERM, stop)
    print("steps", flush=True)
    time.sleep(1000)
sys.exit(3)
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A folder with the project `roses`, whose program says what it was given, and waits for a signal in `repro`."""
    (tmp_path / "roses/pipeline").mkdir(parents=True)
    (tmp_path / "roses/pipeline/__main__.py").write_text(PROGRAM)
    (tmp_path / "photos").mkdir()
    return tmp_path


def test_python_raises_what_the_program_says(fake: Path) -> None:
    """With its exit status. A relative path is from where Python stands; a public set and an address are no path. No
    torch here. test_predict.py has the answers for an address."""
    code = """
for photos in ("photos", "torchvision/MNIST"):
    try: project.start("quick", photos)
    except perennial.Failed as error: print(error, error.status)
for failing in (lambda: project.report, project.predictions, lambda: perennial.Project("photos")):
    try: failing()
    except perennial.Failed as error: print(error.status)
print(project.metrics, "torch" in sys.modules)
print(*project.predict(["a.png", "HTTP://a/b.png?c=9"], top=1)[0])
"""
    done = python(fake, code)
    given = [f"start quick --photos {fake}/photos", "start quick --photos torchvision/MNIST"]
    asked = f"--json --top 1 -- {fake}/a.png HTTP://a/b.png?c=9"
    assert done.stdout.splitlines() == [given[0], "why 3", given[1], "why 3", *"111", "{} False", asked], done.stderr


@pytest.mark.parametrize(("number", "reaches"), [(signal.SIGINT, "SIGINT"), (signal.SIGKILL, "SIGTERM")])
def test_the_end_of_python_saves_the_run(number: int, reaches: str, fake: Path) -> None:
    """Ctrl-C reaches the run once, and Python goes on after the run has ended. If Python is killed, the run is told."""
    words, environ = command("try: project.run()\nexcept KeyboardInterrupt: print(open('roses/saved').read())")
    with subprocess.Popen(words, cwd=fake, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == ["repro\n", "steps\n"]
        process.send_signal(number)
        rest = process.stdout.read()
    assert rest == ("SIGINT\n" if number == signal.SIGINT else "")
    saved = fake / "roses/saved"
    wait_for(lambda: saved.exists() and saved.read_text(), "the run was not told")
    assert saved.read_text() == reaches


@needs_chromium
def test_the_report_changes_no_style_of_the_notebook(
    browser: "Browser", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is shown with its own styles and variables. A heading of the notebook keeps its colour."""
    monkeypatch.syspath_prepend(PROJECT / "requirements")
    import perennial

    style = ":root { --ink: rgb(1, 2, 3); }\nbody { color: var(--ink); }\nh1 { font-size: 77px; }"
    text = f"<html><head><style>\n{style}</style></head><body><h1>Report</h1></body></html>"
    (tmp_path / "index.html").write_text(text)
    page = browser.new_page()
    page.set_content("<div id=cell></div><h1>Notebook</h1>")
    # As Jupyter shows the HTML of a cell: a fragment, in which scripts run.
    page.evaluate(
        "text => document.getElementById('cell').append(document.createRange().createContextualFragment(text))",
        perennial.Report(tmp_path / "index.html")._repr_html_(),
    )
    shown = "getComputedStyle(document.querySelector('#cell div').shadowRoot.querySelector('h1'))"
    own = "getComputedStyle(document.querySelector('body > h1'))"
    assert page.evaluate(f"[{shown}.color, {shown}.fontSize]") == ["rgb(1, 2, 3)", "77px"]
    assert page.evaluate(f"[{own}.color, {own}.fontSize]") == ["rgb(0, 0, 0)", "32px"]
    page.close()


NOTEBOOK = PROJECT / "docs/project.ipynb"


@pytest.mark.nightly("a project with a whole run of quick: 40 s of CPU; test-ci has each command by itself")
def test_the_notebook_runs(tmp_path: Path) -> None:
    """Its cells, in their order, on drawn flowers, in a new project. What it shows equals the files of the project."""
    (tmp_path / "photos").mkdir()
    synthetic.draw(tmp_path / "photos", 60, 64, seed=0, workers=2)
    workspace.create_repository(tmp_path / "clone", source=PROJECT)
    commit(tmp_path / "clone")
    call(tmp_path / "clone", sys.executable, "-m", "pipeline", "new", "../roses")
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    code = ["".join(cell["source"]) for cell in cells]
    assert max(len(str(cell["outputs"])) for cell in cells) < 1000
    checks = """
import csv, numpy, torch
assert net.training is False and str(net(net.transform(some[0])[None]).shape) == "torch.Size([1, 5])"
rows = list(csv.DictReader(open("roses/metrics/predictions.csv")))
for hidden in (False, True):
    sys.modules |= {"pandas": None} if hidden else {}
    table = project.predictions()
    records = table if isinstance(table, list) else table.to_dict("records")
    assert isinstance(table, list) or not hidden
    assert [{key: str(value) for key, value in row.items()} for row in records] == rows
train = [row for row in csv.DictReader(open("roses/data/split.csv")) if row["split"] == "train"]
assert [row["path"] for row in train] == list(images.paths)
assert [row["class"] for row in train] == [images.classes[label] for label in images.labels]
answers = project.predict(some)
for path, answer in zip(some, answers):
    assert answer["path"] == str(path.absolute())
    chances = net(net.transform(path)[None]).softmax(1)[0].tolist()
    assert numpy.allclose(chances, [answer["probabilities"][name] for name in net.classes], atol=1e-4)
test = project.images("test")
assert test.pixels.dtype == "uint8" and test.pixels.shape[0] == len(rows)
assert "attachShadow" in project.report._repr_html_()
try: project.predict(["roses/params.yaml"])
except perennial.Failed as error: assert "params.yaml" in str(error) and error.status == 1
else: raise AssertionError
"""
    done = python(tmp_path, "\n".join([*code, checks]))
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout
