"""Stage `export`: the model as ONNX, and the proof that it gives the same classes.

    perennial export

Writes models/model.onnx and metrics/export.json. Every test image goes through onnxruntime, and the answer is compared
with metrics/predictions.csv. Another class than there is an error that names the image. With evaluate.onnx: false
model.onnx is empty.
"""

from pathlib import Path
from typing import Any

from pipeline.base import files, linux
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Params
from pipeline.evaluation import figures
from pipeline.models import description
from pipeline.running import frame, variables


def run(config: Params) -> None:
    """Write the stage's outputs, and print the differences. Raises UserError if a class changes."""
    target = Path(config.paths.models) / "model.onnx"
    report: dict[str, Any] = {"onnx": config.evaluate.onnx}
    if config.evaluate.onnx:
        variables.set_variables(config.train, variables.usable_arithmetic(Path(config.paths.models)))
        report |= export_onnx(config, target)
    else:
        with files.atomic_file(target) as temporary:
            temporary.touch()
        print(f"export: evaluate.onnx is false, so {target} is empty")
    files.write_json(Path(config.paths.metrics) / "export.json", report)


def export_onnx(config: Params, target: Path) -> dict[str, Any]:
    """Write model.onnx, and compare its answers with those of torch. Returns the content of export.json."""
    frame.tell("export: loading torch and the model")
    from pipeline.dataset import packed
    from pipeline.evaluation import acceptance, onnx_check, onnx_export, onnx_file
    from pipeline.learning import determinism
    from pipeline.models import exported
    from pipeline.running import pixels

    paths, batch_size = config.paths, config.evaluate.batch_size
    determinism.make_deterministic(config.train.threads, config.train.deterministic)
    model = exported.load(Path(paths.models))
    data = packed.load(Path(paths.packed), Path(paths.split))
    pixels.check_pixels(data)
    rows = data.rows("test")
    table = Path(paths.metrics) / figures.PREDICTIONS
    paths_of_table, of_torch = onnx_check.read_predictions(table, model.classes)
    if paths_of_table != tuple(data.paths[row] for row in rows):
        value, remedy = f"not of the test images of {paths.split}", "run perennial repro evaluate first"
        raise UserError(Fault(str(table), value, "differs", remedy=remedy))
    with files.atomic_file(target) as temporary:  # so that no file stays that gives other classes
        frame.tell("export: torch writes the model as ONNX, which takes some seconds")
        scores = acceptance.read(Path(paths.models))
        temporary.write_bytes(onnx_export.content(model, description.load(Path(paths.models)), model.weights, scores))
        runtime = onnx_file.load(temporary, linux.usable_cores())
        of_onnx = onnx_check.onnx_probabilities(runtime, data, rows, batch_size)
        below = onnx_check.limit(paths_of_table, of_torch, of_onnx, model.classes)
    ties = int(onnx_check.near_ties(of_torch).sum())
    print(
        f"export: {target} ({target.stat().st_size:,} bytes) gives the classes of {table} for "
        f"all {len(rows):,} test images; probabilities differ by less than {below:g}"
    )
    if ties:
        print(
            f"export: for {ties:,} of them, the two most likely classes are a tie (less than {onnx_check.NEAR:g} apart)"
        )
    return {
        "images": len(rows),
        "near_ties": ties,
        "probabilities_differ_less_than": below,
    }
