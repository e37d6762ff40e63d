"""Write one HTML file that classifies photos in any browser, without a program and without a network.

    perennial share FILE.html

The file has models/model.onnx in it. It can be sent to anybody: photos that are dropped on it never leave the device.
"""

from argparse import Namespace
from pathlib import Path

from pipeline.answers.answer import as_typed, check_page
from pipeline.base import files
from pipeline.config import params


def main(arguments: Namespace) -> int:
    target = Path(arguments.file)
    check_page("FILE", target, arguments.below)
    from pipeline.answers import share_page

    model = Path(arguments.model) if arguments.model else Path(params.load().paths.models) / "model.onnx"
    files.write_text(target, share_page.page(model))
    size = f"{target.stat().st_size / 1e6:.1f} MB"
    print(f"share: {as_typed(target, arguments.below)} ({size}): open it in a browser, or send it")
    return 0
