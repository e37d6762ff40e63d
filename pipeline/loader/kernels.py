"""Compiles and starts the project's CUDA kernels. The only module that imports cuda.bindings.

A kernel is compiled when it is first used. NVIDIA's compiler library (NVRTC) and its Python bindings come with torch,
so a machine needs no compiler and no CUDA toolkit. torch has a function for this as well. It is not used: it is private
(`torch.cuda._compile_kernel`), and it fails where /usr/local/cuda is missing. Every failure here is a UserError.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pipeline.base.errors import Fault, UserError

THREADS = 256  # per block
REMEDY = "make setup, or a newer NVIDIA driver; perennial doctor shows the packages and the driver"


def launch(source: str, name: str, blocks: int, arguments: Sequence[Tensor | int]) -> None:
    """Start the kernel `name` of a CUDA source, with blocks of THREADS threads, on the device of the first argument.

    Tensors are passed as pointers, numbers as int. The kernel runs in torch's current stream, and nothing waits for it.
    Raises UserError if it cannot be compiled, loaded or started.
    """
    first = arguments[0]
    assert isinstance(first, Tensor)
    with torch.cuda.device(first.device):
        kernel, stream = _kernel(source, name, first.device), torch.cuda.current_stream().cuda_stream
        values = c_values(arguments)
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        shape = (blocks, 1, 1, THREADS, 1, 1)
        _call("cuLaunchKernel", kernel, *shape, 0, stream, ctypes.addressof(pointers), 0)


def c_values(arguments: Sequence[Tensor | int]) -> list[ctypes.c_void_p | ctypes.c_int]:
    """The arguments of a kernel as values of C. They hold no reference to the tensors."""
    return [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_int(a) for a in arguments]


@cache
def _kernel(source: str, name: str, device: torch.device) -> Any:
    """A kernel on a device. It is compiled once per process, in less than a second."""
    major, minor = torch.cuda.get_device_capability(device)
    return _call("cuModuleGetFunction", _module(source, f"sm_{major}{minor}", device), name.encode())


@cache
def _module(source: str, architecture: str, device: torch.device) -> Any:
    """The kernels of a source on a device."""
    return _call("cuModuleLoadData", compile_source(source, architecture))


def compile_source(source: str, architecture: str) -> bytes:
    """The machine code of a CUDA source for an architecture, such as sm_90. It needs no GPU.

    A product and a sum stay two operations with a rounding each. Raises UserError for a source with errors.
    """
    program = _call("nvrtcCreateProgram", source.encode(), b"kernels.cu", 0, [], [])
    options = [f"--gpu-architecture={architecture}".encode(), b"--fmad=false"]
    if _call_with_status("nvrtcCompileProgram", program, len(options), options)[0] != 0:
        log = bytes(_call("nvrtcGetProgramLogSize", program))
        _call("nvrtcGetProgramLog", program, log)
        raise _call_error("nvrtcCompileProgram", f"for {architecture}: {log.rstrip(bytes(1)).decode()}")
    code = bytes(_call("nvrtcGetCUBINSize", program))
    _call("nvrtcGetCUBIN", program, code)
    return code


def _call(function: str, *arguments: Any) -> Any:
    """The result of a function of cuda.bindings, without its status. Raises UserError if the status is a failure."""
    status, *values = _call_with_status(function, *arguments)
    if status != 0:
        raise _call_error(function, status.name)
    return values[0] if values else None


def _call_with_status(function: str, *arguments: Any) -> tuple[Any, ...]:
    """The status of a function of cuda.bindings, and its results. Raises UserError without the library."""
    try:
        from cuda.bindings import driver, nvrtc  # here, because a CPU needs neither

        library = nvrtc if function.startswith("nvrtc") else driver
        results: tuple[Any, ...] = getattr(library, function)(*arguments)
    except (ImportError, RuntimeError) as error:  # the library is missing, or lacks the function
        raise _call_error(function, str(error)) from None
    return results


def _call_error(function: str, reason: str) -> UserError:
    """The error for a function of cuda.bindings that failed."""
    first_line = (reason.splitlines() or ["no reason given"])[0]
    return UserError(Fault("train.device", "cuda", "machine", f"{function} failed ({first_line})", remedy=REMEDY))
