"""Settings of torch that decide the bits of a result."""

import re

import torch


def make_deterministic(threads: int, deterministic: bool) -> None:
    """Set the number of compute threads. With `deterministic`, torch uses only deterministic algorithms, or fails.

    The number of threads decides how a sum is split [measured: 1 and 2 threads give different bits]. torchrun sets it
    only for more than one process, so it is set here for every launcher.
    """
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    torch.backends.cudnn.benchmark = not deterministic  # tries all algorithms and takes the fastest
    torch.backends.cudnn.deterministic = deterministic
    # use_deterministic_algorithms would import torch's compiler, too: a second at each start. The compiler has the
    # variable TORCHINDUCTOR_DETERMINISTIC (environment.py).
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    # Otherwise torch fills every new tensor, which costs time and is not needed. Its stubs lack the name.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def nondeterministic_operator(error: RuntimeError) -> str:
    """The operator that torch refused because it has no deterministic version; empty for any other error."""
    match = re.match(r"(\S+) does not have a deterministic implementation", str(error))
    return match[1] if match else ""
