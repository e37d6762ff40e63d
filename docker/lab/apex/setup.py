"""A stand-in for Apex with its names and none of its code: proof that extensions for torch build, install and load.

It takes the arguments that Apex's setup.py takes, and has one extension more than is needed, as Apex has.
"""

import sys

from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension

for argument in ("--cpp_ext", "--cuda_ext"):
    sys.argv.remove(argument)

setup(
    name="apex",
    version="0.0+standin",
    packages=find_packages(),
    ext_modules=[
        CppExtension("apex_C", ["csrc/stand_in.cpp"]),
        CUDAExtension("amp_C", ["csrc/small.cpp", "csrc/twice.cu"]),
        CUDAExtension("syncbn", ["csrc/small.cpp"]),
        CUDAExtension("not_needed", ["csrc/not_there.cu"]),
    ],
    cmdclass={"build_ext": BuildExtension},
)
