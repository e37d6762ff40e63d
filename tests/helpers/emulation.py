"""A CPU in place of a GPU: the CUDA source of a kernel, compiled as C++, one thread after another."""

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from torch import Tensor

from pipeline.loader import kernels

# As the driver does: a kernel gets an array of pointers to the values of its parameters.
BEFORE = """
#include <utility>
#define __global__
#define __device__
static struct { unsigned x; } blockIdx, blockDim, threadIdx;
"""
AFTER = """
template <class... A, std::size_t... I>
static void one(void (*kernel)(A...), void** values, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(values[I])...);
}
template <class... A>
static void all(void (*kernel)(A...), unsigned blocks, unsigned threads, void** values) {
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++)
            one(kernel, values, std::index_sequence_for<A...>());
}
"""
ENTRY = 'extern "C" void launch_{0}(unsigned b, unsigned t, void** values) {{ all({0}, b, t, values); }}\n'


class Emulator:
    """`launch` is kernels.launch for tensors on the CPU; `launched` are the names of the kernels so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._compiled = cache(self._compile)
        self.launched: list[str] = []

    def _compile(self, source: str) -> ctypes.CDLL:
        names = [line.split("(")[0].split()[-1] for line in source.splitlines() if "__global__" in line]
        text, library = self._folder / "kernels.cpp", self._folder / f"kernels-{abs(hash(source))}.so"
        text.write_text(BEFORE + source + AFTER + "".join(ENTRY.format(name) for name in names))
        # Every operation rounds, as in the kernel (--fmad=false); a fault of memory or of arithmetic is an error.
        strict = ["-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-sign-compare", "-Werror"]
        subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", *strict, "-o", library, text], check=True)
        return ctypes.CDLL(str(library))

    def launch(self, source: str, name: str, blocks: int, arguments: list[Tensor | int]) -> None:
        """Run all threads of a kernel."""
        values = kernels.c_values(arguments)
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self.run(source, name, blocks, ctypes.addressof(pointers))

    def run(self, source: str, name: str, blocks: int, pointers: int) -> None:
        """The same, with the address of the pointers to the arguments, as the driver gets it."""
        getattr(self._compiled(source), f"launch_{name}")(blocks, kernels.THREADS, ctypes.c_void_p(pointers))
        self.launched.append(name)


def emulator(folder: Path) -> Emulator:
    """An emulator that keeps its library in the folder. Skips the test without a compiler."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++, the C++ compiler, to run the CUDA source on the CPU")
    return Emulator(folder)
