"""Build a wheel of Apex with the three extensions that the pipeline uses, by Apex's own setup.py, unpatched.

    cd <folder of Apex> && python build_apex.py        leaves dist/apex-*.whl

Its flags --cpp_ext and --cuda_ext ask for a dozen extensions, one of which CUDA 13 cannot build, and there is no flag
for fewer. So what setup.py hands to setuptools is cut down to the three.
"""

import runpy
import sys
from typing import Any

import setuptools

NEEDED = {"amp_C", "apex_C", "syncbn"}  # the scaler and FusedSGD, the flattening of apex DDP, SyncBatchNorm
real_setup = setuptools.setup


def setup(**arguments: Any) -> None:
    """setuptools.setup, for the extensions in NEEDED alone."""
    kept = [extension for extension in arguments.pop("ext_modules") if extension.name in NEEDED]
    if missing := NEEDED - {extension.name for extension in kept}:
        sys.exit(f"build_apex: setup.py builds no {', '.join(sorted(missing))}; is this Apex at APEX_COMMIT?")
    real_setup(ext_modules=kept, **arguments)


if __name__ == "__main__":
    setuptools.setup = setup
    sys.argv = ["setup.py", "--cpp_ext", "--cuda_ext", "bdist_wheel"]
    runpy.run_path("setup.py", run_name="__main__")
