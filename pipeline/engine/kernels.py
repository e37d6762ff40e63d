"""CUDA kernels of our own, compiled when they are first used. The one owner of cuda.bindings.

NVIDIA's compiler library (NVRTC) and its Python bindings come with torch, so a machine needs no compiler and no CUDA
toolkit. torch has a function for this as well. It is not used: it is private (`torch.cuda._compile_kernel`), and it
fails where /usr/local/cuda is missing. Whatever fails here is a UserError.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pipeline.base.errors import Fault, UserError

THREADS = 256  # per block
REMEDY = "install the packages of requirements/lock.txt (make setup), or a newer NVIDIA driver; make doctor shows both"


def launch(source: str, name: str, blocks: int, arguments: Sequence[Tensor | int]) -> None:
    """Start the kernel `name` of a CUDA source, with blocks of THREADS threads, on the device of the first argument.

    Tensors are passed as pointers, numbers as int. The kernel runs in torch's current stream, and nothing waits for it.
    Raises UserError if it cannot be compiled, loaded or started.
    """
    first = arguments[0]
    assert isinstance(first, Tensor)
    with torch.cuda.device(first.device):
        kernel, stream = _loaded(source, name, first.device), torch.cuda.current_stream().cuda_stream
        values = c_values(arguments)
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        shape = (blocks, 1, 1, THREADS, 1, 1)
        _called("cuLaunchKernel", kernel, *shape, 0, stream, ctypes.addressof(pointers), 0)


def c_values(arguments: Sequence[Tensor | int]) -> list[ctypes.c_void_p | ctypes.c_int]:
    """The arguments of a kernel as values of C. They hold no reference to the tensors."""
    return [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_int(a) for a in arguments]


@cache
def _loaded(source: str, name: str, device: torch.device) -> Any:
    """A kernel on a device. It is compiled once per process, in less than a second."""
    major, minor = torch.cuda.get_device_capability(device)
    return _called("cuModuleGetFunction", _module(source, f"sm_{major}{minor}", device), name.encode())


@cache
def _module(source: str, architecture: str, device: torch.device) -> Any:
    """The kernels of a source on a device."""
    return _called("cuModuleLoadData", compiled(source, architecture))


def compiled(source: str, architecture: str) -> bytes:
    """The machine code of a CUDA source for an architecture, such as sm_90. It needs no GPU.

    A product and a sum stay two operations with a rounding each, as written. Raises UserError.
    """
    program = _called("nvrtcCreateProgram", source.encode(), b"kernels.cu", 0, [], [])
    options = [f"--gpu-architecture={architecture}".encode(), b"--fmad=false"]
    if _answered("nvrtcCompileProgram", program, len(options), options)[0] != 0:
        log = bytes(_called("nvrtcGetProgramLogSize", program))
        _called("nvrtcGetProgramLog", program, log)
        raise _failed("nvrtcCompileProgram", f"for {architecture}: {log.rstrip(bytes(1)).decode()}")
    code = bytes(_called("nvrtcGetCUBINSize", program))
    _called("nvrtcGetCUBIN", program, code)
    return code


def _called(function: str, *arguments: Any) -> Any:
    """What a function of cuda.bindings returns besides its status. Raises UserError if the status is a failure."""
    status, *values = _answered(function, *arguments)
    if status != 0:
        raise _failed(function, status.name)
    return values[0] if values else None


def _answered(function: str, *arguments: Any) -> tuple[Any, ...]:
    """What a function of cuda.bindings returns; its status is the first. Raises UserError without the library."""
    try:
        from cuda.bindings import driver, nvrtc  # here, because a CPU needs neither

        answer: tuple[Any, ...] = getattr(nvrtc if function.startswith("nvrtc") else driver, function)(*arguments)
    except (ImportError, RuntimeError) as error:  # the library is missing, or lacks the function
        raise _failed(function, str(error)) from None
    return answer


def _failed(function: str, reason: str) -> UserError:
    """The error for a function of cuda.bindings that failed."""
    first = (reason.splitlines() or ["no reason given"])[0]
    return UserError(Fault("train.device", "cuda", "machine", f"{function} failed ({first})", remedy=REMEDY))
