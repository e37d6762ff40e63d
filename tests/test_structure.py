"""The architecture: layers and their imports, the owner of each library, and what a stage depends on."""

import ast
import re
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.workspace import STAGE_TABLES, STAGES
from pipeline.__main__ import LAUNCHED, module_of
from pipeline.command_line import COMMANDS
from pipeline.running import frame
from pipeline.versioning import dvc_lock
from tests.conftest import PROJECT, limited
from tests.helpers import starts
from tests.helpers.modules import MODULES, closure, imports, modules_of
from tests.helpers.projects import edited, stages_folder

# The folders of pipeline/, from the lowest layer to the highest. "" is the top of pipeline/: the program.
DECIDING = (
    "base", "config", "dataset", "sources", "data", "loader", "models", "evaluation", "learning", "reporting",
)  # fmt: skip
LAYERS = (
    *DECIDING, "versioning", "checks", "running", "answers", "planning", "studies", "attest", "stages", "commands", "",
)  # fmt: skip
OWNERS = {  # a library → the modules that import it
    "yaml": set(), "ruamel": {"config.document", "versioning.dvc_lock"},
    "pydantic": {"config.document", "config.params", "base.schema", "studies.ranges"},
    "pydantic_core": {"config.document"},
    "PIL": {
        "data.appearance", "data.decoders", "data.images", "dataset.squares", "sources.synthetic",
        "evaluation.heatmap", "reporting.thumbnails",
    },
    "imagehash": {"data.duplicates"},
    "jinja2": {"reporting.rendering"}, "markupsafe": {"reporting.rendering"},
    "scipy": {"attest.seeds", "data.duplicates", "evaluation.metrics"},
    "pooch": {"sources.fetch"}, "requests": {"sources.fetch"},
    "tarfile": {"sources.archive"}, "zipfile": {"sources.archive"},
    "timm": {"models.timm_models"},
    "torchvision": {"sources.torchvision_sets", "models.network", "models.pretrained", "running.monitor"},
    "tensorboard": set(),
    "safetensors": {"models.exported", "models.pretrained"},
    "apex": {"learning.apex"},
    "dvc": {
        "studies.revisions", "commands.continue_from", "versioning.changed_dvc", "versioning.in_process",
        "versioning.questions", "loader.remote", "versioning.run_cache",
    },
    "optuna": {"studies.search"}, "sklearn": set(),
    "numba": {"loader.resample"}, "cuda": {"loader.kernels"},
    "onnx": {"evaluation.onnx_export"}, "onnxscript": {"evaluation.onnx_export"},
    "onnxruntime": {"evaluation.onnx_file"}, "transformers": set(),
    "shtab": {"command_line"},
    "ctypes": {"base.linux", "checks.machine", "loader.kernels"},
}  # fmt: skip
TORCH_DISTRIBUTED = {  # stores, exchanges
    "running.rendezvous", "running.nodes", "running.group", "running.launchers", "learning.collectives",
}  # fmt: skip
APEX_USERS = {"learning.choices", "running.launch", "commands.doctor"}  # import learning.apex, inside a function


def layer(module: str) -> str:
    """The folder below pipeline/ that a module lies in; empty for a command."""
    return module.removeprefix("pipeline").removeprefix(".").rpartition(".")[0]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_file_imports_its_own_layer_or_an_earlier_one(module: str) -> None:
    """Imports run one way, so a deciding module imports deciding ones alone. No stage or command imports another."""
    own = LAYERS.index(layer(module))
    for name in modules_of(MODULES[module]):
        assert LAYERS.index(layer(name)) <= own, f"{module} imports {name}, of a later layer"
        if layer(name) in ("stages", "commands"):
            assert module == "pipeline.__main__", f"{module} imports {name}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_library_has_an_owner(module: str) -> None:
    """A library is imported by its owner alone."""
    here = module.removeprefix("pipeline").removeprefix(".")
    for name in imports(MODULES[module]):
        library = name.split(".")[0]
        assert here in OWNERS.get(library, {here}), f"{here} imports {library}"
        if name.startswith("torch.distributed"):
            assert here in TORCH_DISTRIBUTED, f"{here} imports torch.distributed"


def test_apex_is_asked_for_in_one_place() -> None:
    """Training reaches Apex through learning.choices alone; launch and doctor ask whether it loads."""
    users = {module for module, path in MODULES.items() if "pipeline.learning.apex" in imports(path)}
    assert users == {f"pipeline.{name}" for name in APEX_USERS}


def test_no_module_imports_itself_through_others() -> None:
    """Imports have no circle, not even one that a lazy import closes."""
    imported = {module: modules_of(MODULES[module]) for module in MODULES}
    while leaf := {module for module, names in imported.items() if not names & imported.keys()}:
        imported = {module: names for module, names in imported.items() if module not in leaf}
    assert not imported, f"in a circle, or above one: {sorted(imported)}"


def code_of(stage: str) -> set[Path]:
    """The deciding files that the processes of a stage import, and the stage's own one."""
    imported = closure(f"pipeline.stages.{stage}")
    own = Path(f"pipeline/stages/{stage}.py")
    return {
        file for file in imported if file == own or (file.parts[1] in DECIDING and file.name != "__init__.py")
    }  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_what_decides_its_outputs(stage: str) -> None:
    """Its code deps are the folders of the deciding files that it imports, whole, and its own file. Serving code is
    none: other words, another progress bar, another launcher run no stage again.
    """
    deps, imported = {Path(dep) for dep in STAGE_TABLES[stage]["deps"]}, code_of(stage)
    assert Path("requirements/lock.txt") in deps
    code = {dep for dep in deps if dep.parts[0] == "pipeline"}
    assert all(any(file.is_relative_to(dep) for dep in code) for file in imported), imported
    assert all(any(file.is_relative_to(dep) for file in imported) for dep in code), code
    assert not [dep for dep in code if any(dep.is_relative_to(serving) for serving in frame.SERVING)]


def test_every_folder_decides_or_serves() -> None:
    """A stage refuses to import any other file of the project that is no dep of it."""
    serving = {path.name for path in frame.SERVING}
    assert {*LAYERS, "command_line.py"} - {""} == {*DECIDING, "stages"} | serving


def test_what_describes_a_folder_does_nothing() -> None:
    """No stage depends on the `__init__.py` of a folder: it is a docstring alone."""
    for path in (PROJECT / "pipeline").rglob("__init__.py"):
        (only,) = ast.parse(path.read_text()).body
        assert isinstance(only, ast.Expr), path


TEMPLATES = Path("pipeline/reporting/templates")


def test_a_stage_depends_on_the_templates_that_it_fills() -> None:
    """The folder of templates is a dep of the stages that render, and of no other one."""
    filled = {stage for stage in STAGES if TEMPLATES.parent / "rendering.py" in closure(f"pipeline.stages.{stage}")}
    assert filled == {"card", "report"}
    named = {str(TEMPLATES), str(TEMPLATES.parent)}
    assert filled == {stage for stage in STAGES if not named.isdisjoint(STAGE_TABLES[stage]["deps"])}


def test_the_fingerprint_covers_the_code_that_train_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of such a file begins a new run; a change of another one (a message, the doctor) ends no run."""
    monkeypatch.chdir(PROJECT)
    code = set(dvc_lock.code("train"))
    assert code_of("train") | {Path("requirements/lock.txt"), Path("docker/pins.env")} <= code
    assert not [path for path in code if path.parts[0] == "pipeline" and path.parts[1] not in (*DECIDING, "stages")]


NEW_CODE = {  # a line of stages/weights.py → the same line with an import of a new module
    "from pipeline.running import frame": "from pipeline.running import frame; from pipeline import own",
    "    model, choice =": "    from pipeline.own import deep; model, choice =",
}


@pytest.mark.parametrize("line", NEW_CODE)
@pytest.mark.parametrize("new", ["pipeline/own.py", "pipeline/own/__init__.py"])
def test_a_stage_refuses_a_module_that_is_none_of_its_deps(line: str, new: str, tmp_path: Path) -> None:
    """A new file that a stage imports, at its start or later, has to be in dvc.yaml: DVC would not see its changes."""
    folder = stages_folder(tmp_path)
    for name in ("pipeline", "dvc.yaml"):
        (folder / name).unlink()
    shutil.copytree(PROJECT / "pipeline", folder / "pipeline", symlinks=True)
    (folder / new).parent.mkdir(exist_ok=True)
    (folder / new).write_text("from pipeline.loader import sampler\n\n\ndef deep() -> None: ...\n")
    edited("pipeline/stages/weights.py", line, NEW_CODE[line])(folder)
    (folder / "pipeline/unused.py").write_text("def unused() -> None: ...\n")
    text = (PROJECT / "dvc.yaml").read_text()
    command = [sys.executable, "-m", "pipeline", "weights"]
    for listed, status in (((), 1), ((new,), 1), ((new, "pipeline/loader/sampler.py"), 0)):
        added = "".join(f"      - {path}\n" for path in listed)
        stage = "      - pipeline/stages/weights.py\n"
        (folder / "dvc.yaml").write_text(text.replace(stage, stage + added))
        done = starts.run(command, cwd=folder)
        assert done.returncode == status, done.stderr
        named = re.findall(r"add to its deps the line: - (\S+)", done.stderr)
        assert named == sorted({new, "pipeline/loader/sampler.py"} - {*listed})
        assert (folder / "data/weights").exists() == (status == 0 or line.startswith(" "))


@pytest.mark.parametrize(
    "module",
    [
        "config.params", "checks.validity", "dataset.packed", "evaluation.figures", "stages.download", "stages.split",
        "stages.prepare", "stages.weights", "running.launch", "stages.card", "stages.report", "commands.predict",
        "commands.doctor",
    ],
)  # fmt: skip
def test_what_needs_no_torch_imports_none(module: str) -> None:
    """Importing the stages before train takes no torch, and so no seconds."""
    code = f"import sys, pipeline.{module}; sys.exit('torch' in sys.modules or 'torchvision' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)


def test_what_trains_imports_no_decoder() -> None:
    """A training and the trial of its steps read packed images; the start of the trial is measured."""
    assert Path("pipeline/data/decoders.py") not in closure("pipeline.stages.train") | closure(
        "pipeline.planning.trial"
    )


@pytest.mark.parametrize("name", ["lock.txt", "test.txt"])
def test_a_lock_names_no_address(name: str) -> None:
    """It holds names, versions and hashes, and nothing that says where from."""
    text = (PROJECT / "requirements" / name).read_text()
    assert "://" not in text
    assert "--index" not in text
    assert text.count("--hash=sha256:") > 100


LONGEST = 300  # lines of a module
MOST_PARAMETERS = 6  # of a public function or method; self, cls and *args do not count


def test_a_module_is_short() -> None:
    """No module has more than 300 lines."""
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {module for module, length in lengths.items() if length > LONGEST} == set()


def public_functions(module: str, body: list[ast.stmt]) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The public functions of a module, and the public methods and __init__ of its public classes, by dotted name."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (node.name[0] != "_" or node.name == "__init__"):
            name = f"{module}.{node.name}"
            if isinstance(node, ast.ClassDef):
                yield from public_functions(name, node.body)
            else:
                yield name, node


def test_a_public_function_has_few_parameters() -> None:
    """A function with more than six parameters lacks an object: no public function or method has more."""
    many = {
        name
        for module, path in MODULES.items()
        for name, function in public_functions(module.removeprefix("pipeline."), ast.parse(path.read_text()).body)
        for arguments in [function.args]
        for names in [[argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]]
        if len([name for name in names if name not in ("self", "cls")]) > MOST_PARAMETERS
    }
    assert many == set()


def statements_of_import(body: list[ast.stmt]) -> Iterator[str]:
    """The statements that run when a module is imported, in one line each, without definitions."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from statements_of_import(node.body) if "__main__" not in ast.unparse(node) else ()
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield ast.unparse(node)


def test_an_import_changes_nothing_of_the_process() -> None:
    """No module sets an environment variable, a hook or a threshold at import."""
    changing = re.compile(r"(os|sys|gc|signal|threading|torch)\.[\w.]*( =|\[|\()|set_up_interpreter")
    changes = {
        (module, statement)
        for module, path in MODULES.items()
        for statement in statements_of_import(ast.parse(path.read_text()).body)
        if changing.match(statement)
    }
    assert changes == set()


def test_no_test_waits_without_end() -> None:
    """What a test started is killed when its time is over, and the test fails with the names of what it waited for."""
    with (
        subprocess.Popen(["sleep", "1000"]) as started,
        pytest.raises(pytest.fail.Exception, match=r"more than 1 s; killed: .*sleep 1000"),
        limited(1),
    ):
        started.wait()
    assert started.returncode == -signal.SIGKILL
    with pytest.raises(pytest.fail.Exception, match="more than 1 s"), limited(1, longer=1):
        time.sleep(1000)


CATCH_USER_ERROR = (
    "base.errors", "commands.continue_from", "loader.remote", "answers.classify", "evaluation.photos", "running.launch",
    "running.frame", "running.runs", "studies.slurm", "models.own",
)  # fmt: skip


def test_every_command_has_a_module_and_every_module_a_command() -> None:
    """Nobody but the program ends with a UserError as a line."""
    folders = {module for module in MODULES if layer(module) in ("stages", "commands")}
    helpers = {"pipeline.stages", "pipeline.commands"}
    arguments = [Namespace(command=name, stage="train") for name in COMMANDS]
    arguments += [Namespace(command="rank", stage=stage) for stage in ("features", "evaluate")]
    assert {module_of(given) for given in arguments} == (folders - helpers) | {*LAUNCHED.values()}
    written = {module for module, path in MODULES.items() if "except UserError" in path.read_text()}
    assert written <= {f"pipeline.{name}" for name in CATCH_USER_ERROR}


def test_the_drawing_of_the_layers_is_the_folders() -> None:
    """docs/architecture.md draws the layers in their order, from the top, each with its files."""
    text = (PROJECT / "docs/architecture.md").read_text().split("layers -->")[1]
    drawn = dict(re.findall(r"^([a-z]+) .*\n((?:[ │]{5,}[\w ]+\n)+)", text, re.MULTILINE))
    folders = {layer or "program": PROJECT / "pipeline" / layer for layer in reversed(LAYERS)}
    assert list(drawn) == list(folders)
    for layer, folder in folders.items():
        assert set(re.findall(r"\w+", drawn[layer])) == {path.stem for path in folder.glob("*.py")} - {"__init__"}, (
            layer
        )
