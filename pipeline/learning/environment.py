"""Environment variables that change results: some are set, some values are refused, all are recorded.

The checkpoint and provenance.json contain them. A resume is refused if one of them differs, and so is a training whose
processes differ in one.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Arithmetic

# Families of variables, by the library that reads them. So a variable that a later version adds is covered too.
NUMERIC = re.compile(
    r"(ATEN|MKL|MKLDNN|ONEDNN|DNNL|OPENBLAS|GOTO|BLIS|OMP|GOMP|KMP|NPY|NUMBA|CUBLAS|CUBLASLT|CUDNN|NCCL"
    r"|TORCHINDUCTOR|TORCHDYNAMO|TRITON|PYTORCH_(TENSOREXPR|MIOPEN|NO_CUDA_MEMORY)"
    r"|TORCH_(ALLOW_TF32|BLAS|CUDNN|LINALG|LINEAR|MKLDNN|COMPILE))_\w+"
    r"|GLIBC_TUNABLES|NVIDIA_TF32_OVERRIDE"
)
# Variables of these families that change no result: logging, caches, and the network between machines.
NOT_NUMERIC = re.compile(
    r"(MKL|MKLDNN|ONEDNN|DNNL|OPENBLAS|KMP|TRITON)_VERBOSE\w*|(CUBLAS|CUBLASLT|CUDNN)_LOG\w*|(OMP|KMP)_DISPLAY_\w+"
    r"|(NUMBA|TORCHINDUCTOR|TRITON)_CACHE_DIR|NUMBA_DISABLE_PERFORMANCE_WARNINGS|GOMP_DEBUG"
    r"|NCCL_(DEBUG|SOCKET|IB|NET|OOB|HOSTID|COMM_ID)\w*"
)

# The values of a variable that make a library deterministic. The first one is the default. A variable without values
# must not be set.
ALLOWED_VALUES: dict[str, tuple[str, ...]] = {
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8"),  # one workspace size [NVIDIA cuBLAS, "Results reproducibility"]
    "NCCL_ALGO": ("Ring",),  # one algorithm for every message size; Tree cannot broadcast [NCCL]
    "NCCL_PROTO": ("Simple", "LL", "LL128"),
    "OMP_DYNAMIC": ("FALSE", "false"),  # otherwise the machine's load decides how many threads share a sum
    # train.compile: otherwise a timing decides whether matrices are padded [PyTorch 2.11, inductor's pad_mm.py].
    "TORCHINDUCTOR_DETERMINISTIC": ("1",),
    "NVIDIA_TF32_OVERRIDE": (),  # overrides train.precision in every library [NVIDIA cuBLAS]
}
# The same for train.arithmetic. Without a value, a library chooses its code by the kind of CPU, so other bits come out
# of the same sum. With these, every x86-64 CPU with AVX2 and FMA runs the same code, in fp32 and fp64 [measured].
PORTABLE = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own operators
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # convolutions
    "MKL_CBWR": "COMPATIBLE",  # products of matrices; other values do not hold on AMD [Intel oneMKL, CNR]
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4",  # numpy: what every x86-64 CPU has
}
CPU_VARIABLES = (
    *PORTABLE,
    "DNNL_MAX_CPU_ISA",
    "GLIBC_TUNABLES",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_ENABLE_CPU_FEATURES",
)


def initial_variables() -> dict[str, str]:
    """The environment at the start of this process. Libraries add variables when they are imported."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    return {name: value for name, equals, value in (os.fsdecode(entry).partition("=") for entry in entries) if equals}


def numeric_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that change results: values by name."""
    return {
        name: environ[name] for name in sorted(environ) if NUMERIC.fullmatch(name) and not NOT_NUMERIC.fullmatch(name)
    }


def required_variables(threads: int, deterministic: bool, arithmetic: Arithmetic = "native") -> dict[str, str]:
    """Variables that must be set before a process loads its libraries: values by name.

    Raises UserError if `deterministic` and a variable has a value that is not allowed with it, or with `arithmetic`.
    """
    variables = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # DDP warns in every process if there are no unused parameters. It must search for them (see parallel.py).
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # NCCL's heartbeat counts the seconds in which a process is stopped (Ctrl-Z), and ends the process when it goes
        # on. running/watchdog.py does not count them.
        "TORCH_NCCL_ENABLE_MONITORING": "0",
    }
    if not deterministic:
        return variables
    cpu_values: dict[str, tuple[str, ...]] = dict.fromkeys(CPU_VARIABLES, ())
    if arithmetic == "portable":
        cpu_values |= {name: (value,) for name, value in PORTABLE.items()}
    return {
        **variables,
        **_allowed_variables(ALLOWED_VALUES, "train.deterministic: true"),
        **_allowed_variables(cpu_values, f"train.arithmetic: {arithmetic}"),
    }


def _allowed_variables(allowed: Mapping[str, tuple[str, ...]], setting: str) -> dict[str, str]:
    """The variables with their values in the environment, or else their first allowed value.

    Raises UserError for a value that is not allowed.
    """
    variables = {}
    for name, choices in allowed.items():
        if name in os.environ:
            value = os.environ[name]
            if value not in choices:
                reason = f"it contradicts {setting}"
                raise UserError(Fault(name, repr(value), "pair", reason, ", ".join(choices), "unset it"))
            variables[name] = value
        elif choices:
            variables[name] = choices[0]
    return variables
