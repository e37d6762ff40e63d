"""The architecture: layers and their imports, the owner of each library, and what a stage depends on."""

import ast
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.workspace import STAGE_TABLES, STAGES
from pipeline.__main__ import LAUNCHED, module_of
from pipeline.command_line import COMMANDS
from pipeline.versioning import dvc_lock
from tests.conftest import PROJECT
from tests.helpers.modules import MODULES, closure, imports, modules_of

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
    "imagehash": {"data.appearance"},
    "jinja2": {"reporting.rendering"}, "markupsafe": {"reporting.rendering"},
    "scipy": {"data.duplicates", "evaluation.metrics"},
    "requests": {"sources.fetch"},
    "tarfile": {"sources.archive"}, "zipfile": {"sources.archive"},
    "timm": {"models.timm_models"},
    "torchvision": {"sources.torchvision_sets", "models.network", "running.monitor"},
    "tensorboard": set(),
    "safetensors": {"models.exported", "models.pretrained"},
    "apex": {"learning.apex"},
    "dvc": {
        "studies.revisions", "versioning.changed_dvc", "versioning.in_process",
        "versioning.questions", "loader.remote", "versioning.run_cache",
    },
    "optuna": {"studies.search"}, "sklearn": set(),
    "numba": {"loader.resample"}, "cuda": {"loader.kernels"},
    "onnx": {"answers.page_network", "evaluation.onnx_exact", "evaluation.onnx_export"},
    "onnxscript": {"evaluation.onnx_export"},
    "onnxruntime": {"evaluation.onnx_file"}, "transformers": set(),
    "shtab": {"command_line"},
    "ctypes": {"base.linux", "checks.machine", "loader.kernels"},
    "benchmarks": set(), "tests": set(),
}  # fmt: skip
TORCH_DISTRIBUTED = {  # stores, exchanges
    "running.rendezvous", "running.nodes", "running.group", "running.launchers", "learning.collectives",
}  # fmt: skip
APEX_USERS = {"learning.choices", "running.launch", "commands.doctor"}  # import learning.apex, in a function


def layer(module: str) -> str:
    """The folder below pipeline/ that a module lies in; empty for a command."""
    return module.removeprefix("pipeline").removeprefix(".").rpartition(".")[0]


def test_a_file_imports_its_own_layer_or_an_earlier_one() -> None:
    """Imports run one way, so a deciding module imports deciding ones alone. No stage or command imports another."""
    wrong = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        for name in modules_of(path)
        if LAYERS.index(layer(name)) > LAYERS.index(layer(module))
        or (layer(name) in ("stages", "commands") and module != "pipeline.__main__")
    ]
    assert wrong == []


def test_a_library_has_an_owner() -> None:
    """A library is imported by its owner alone."""
    wrong = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        for name in imports(path)
        for here in [module.removeprefix("pipeline.")]
        if here not in OWNERS.get(name.split(".")[0], {here})
        or (name.startswith("torch.distributed") and here not in TORCH_DISTRIBUTED)
        or (name == "pipeline.learning.apex" and here not in APEX_USERS)
    ]
    assert wrong == []


def test_no_module_imports_itself_through_others() -> None:
    """Imports have no circle, not even one that a lazy import closes."""
    imported = {module: modules_of(MODULES[module]) for module in MODULES}
    while leaf := {module for module, names in imported.items() if not names & imported.keys()}:
        imported = {module: names for module, names in imported.items() if module not in leaf}
    assert not imported, f"in a circle, or above one: {sorted(imported)}"


TEMPLATES = Path("pipeline/reporting/templates")


def code_of(stage: str) -> set[Path]:
    """The deciding files that the processes of a stage import, its own one, and the templates that it fills."""
    imported, own = closure(f"pipeline.stages.{stage}"), Path(f"pipeline/stages/{stage}.py")
    deciding = {file for file in imported if file.parts[1] in DECIDING and file.name != "__init__.py"}
    return {own} | deciding | ({TEMPLATES} if TEMPLATES.parent / "rendering.py" in imported else set())


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_what_decides_its_outputs(stage: str) -> None:
    """Its code deps are the folders of what it imports, whole, and its own file. Another progress bar runs no stage."""
    deps, imported = {Path(dep) for dep in STAGE_TABLES[stage]["deps"]}, code_of(stage)
    assert Path("requirements/lock.txt") in deps
    code = {dep for dep in deps if dep.parts[0] == "pipeline"}
    assert all(any(file.is_relative_to(dep) for dep in code) for file in imported), imported
    assert all(any(file.is_relative_to(dep) for file in imported) for dep in code), code
    assert not [dep for dep in code if dep.parts[1] not in (*DECIDING, "stages")]


def test_what_describes_a_folder_does_nothing() -> None:
    """No stage depends on the `__init__.py` of a folder: it is a docstring alone."""
    for path in (PROJECT / "pipeline").rglob("__init__.py"):
        (only,) = ast.parse(path.read_text()).body
        assert isinstance(only, ast.Expr), path


def test_the_fingerprint_covers_the_code_that_train_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of such a file begins a new run; a change of another one (a message, the doctor) ends no run."""
    monkeypatch.chdir(PROJECT)
    code = set(dvc_lock.code("train"))
    assert code_of("train") | {Path("requirements/lock.txt"), Path("docker/pins.env")} <= code
    assert not [path for path in code if path.parts[0] == "pipeline" and path.parts[1] not in (*DECIDING, "stages")]


def test_what_needs_no_torch_imports_none() -> None:
    """Importing the stages before train takes no torch, and so no seconds. What trains imports no decoder."""
    names = [
        "config.params", "checks.validity", "dataset.packed", "evaluation.figures", "stages.download", "stages.split",
        "stages.prepare", "stages.weights", "running.launch", "stages.card", "stages.report", "commands.predict",
        "commands.doctor",
    ]  # fmt: skip
    ask = "import sys, importlib\nfor name in sys.argv[1:]:\n    importlib.import_module(f'pipeline.{name}')\n"
    ask += "    assert not {'torch', 'torchvision'} & {*sys.modules}, name"
    subprocess.run([sys.executable, "-c", ask, *names], cwd=PROJECT, check=True)
    for trains in ("stages.train", "planning.trial"):  # they read packed images; the start of the trial is measured
        assert Path("pipeline/data/decoders.py") not in closure(f"pipeline.{trains}")


def test_the_compiler_of_torch_is_imported_only_to_compile() -> None:
    """The import takes a second. Deterministic algorithms, torchvision and timm would import the compiler."""
    ask = "import sys, torch; from pipeline.learning import determinism; from pipeline.models import network\n"
    ask += "determinism.make_deterministic(1, True); network.build('exact/tf_efficientnet_lite0', 3, seed=0)\n"
    ask += "assert torch.are_deterministic_algorithms_enabled() and 'timm' in sys.modules\n"
    ask += "assert not [name for name in sys.modules if name.startswith(('torch._dynamo', 'torch._inductor'))]\n"
    ask += "assert torch.compiler.disable is not torch._disable_dynamo"
    subprocess.run([sys.executable, "-c", ask], cwd=PROJECT, check=True)


LONGEST = 300  # lines of a module
MOST_PARAMETERS = 6  # of a public function or method; self, cls and *args do not count


def test_a_module_is_short_and_a_public_function_has_few_parameters() -> None:
    """A function with more than six parameters lacks an object."""
    for module, path in MODULES.items():
        text = path.read_text()
        assert text.count("\n") <= LONGEST, module
        body = ast.parse(text).body
        body += [method for node in body if isinstance(node, ast.ClassDef) for method in node.body]
        for node in body:
            if isinstance(node, ast.FunctionDef) and (node.name[0] != "_" or node.name == "__init__"):
                arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                names = {argument.arg for argument in arguments} - {"self", "cls"}
                assert len(names) <= MOST_PARAMETERS, f"{module}: {node.name}"


def test_an_import_changes_nothing_of_the_process() -> None:
    """No module sets an environment variable, a hook or a threshold at import."""
    changing = re.compile(r"(os|sys|gc|signal|threading|torch)\.[\w.]*( =|\[|\()|set_up_interpreter")

    def statements(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from statements(node.body) if "__main__" not in ast.unparse(node) else ()
            elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield ast.unparse(node)

    for module, path in MODULES.items():
        assert [line for line in statements(ast.parse(path.read_text()).body) if changing.match(line)] == [], module


def test_every_command_has_a_module_and_every_module_a_command() -> None:
    """Each module of stages/ and commands/ is started by a command; `rank` starts those of a launcher."""
    folders = {module for module in MODULES if layer(module) in ("stages", "commands")}
    arguments = [Namespace(command=name, stage="train") for name in COMMANDS]
    arguments += [Namespace(command="rank", stage=stage) for stage in ("features", "evaluate")]
    assert {module_of(given) for given in arguments} - {*LAUNCHED.values()} == folders - {
        "pipeline.stages", "pipeline.commands",
    }  # fmt: skip


def test_the_drawing_of_the_layers_is_the_folders() -> None:
    """docs/architecture.md draws the layers in their order, from the top, each with its files."""
    text = (PROJECT / "docs/architecture.md").read_text().split("layers -->")[1]
    drawn = dict(re.findall(r"^([a-z]+) .*\n((?:[ │]{5,}[\w ]+\n)+)", text, re.MULTILINE))
    folders = {name or "program": PROJECT / "pipeline" / name for name in reversed(LAYERS)}
    files = {name: {path.stem for path in folder.glob("*.py")} - {"__init__"} for name, folder in folders.items()}
    assert [*drawn] == [*folders]
    assert {name: {*re.findall(r"\w+", drawn[name])} for name in drawn} == files
