"""The CUDA kernels that cut crops give the bits of the CPU, as far as a machine without a GPU can show it.

tests/gpu/test_augment.py compares the two on a GPU.
"""

import re
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.loader import kernels, resample
from pipeline.loader.resample import Crops
from pipeline.loader.resample_cuda import SOURCE
from tests.conftest import PROJECT
from tests.helpers.crops import AS_IT_IS, LAYOUTS, NORMALIZED, drawn_crops, exact, random_images
from tests.helpers.emulation import Emulator, emulator
from tests.helpers.refusals import refuses


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return emulator(tmp_path_factory.mktemp("emulated"))


def by_kernels(gpu: Emulator, images: Tensor, crops: Crops, normalization: tuple[Tensor, Tensor]) -> Tensor:
    """The crops by the kernels: the same values in both layouts."""
    results = [resample.by_kernels(images, crops, *normalization, layout, gpu.launch) for layout in LAYOUTS]
    assert [result.is_contiguous(memory_format=layout) for result, layout in zip(results, LAYOUTS, strict=True)]
    assert torch.equal(*results)
    return results[0]


@pytest.mark.parametrize(("side", "out"), [(256, 224), (80, 64), (40, 96), (16, 16), (33, 17), (300, 20)])
def test_the_kernels_have_the_bits_of_the_loop(gpu: Emulator, side: int, out: int) -> None:
    """1,020 drawn crops of six pairs of sizes, with and without normalization, in both layouts."""
    images, crops = random_images(5, side), drawn_crops(20 if side == 256 else 200, 5, side, out, seed=side)
    for normalization in (AS_IT_IS, NORMALIZED):
        loops = resample.by_loops(images, crops, *normalization)
        assert torch.equal(by_kernels(gpu, images, crops, normalization), loops)


@pytest.mark.nightly("1,000 pairs of sizes take half a minute; make test has 1,020 crops of six pairs")
@settings(max_examples=1000)
@given(side=st.integers(16, 90), out=st.integers(16, 90), n=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_the_kernels_have_the_bits_of_exact_arithmetic(gpu: Emulator, side: int, out: int, n: int, seed: int) -> None:
    """1,000 drawn pairs of sizes, images and boxes."""
    images, crops = random_images(2, side, seed), drawn_crops(n, 2, side, out, seed)
    assert torch.equal(by_kernels(gpu, images, crops, NORMALIZED), exact(images, crops, *NORMALIZED))


def test_filters_of_the_largest_sizes_fit_into_whole_numbers(gpu: Emulator) -> None:
    """The largest image and crop that params.yaml allows: the same bits, so no number overflows."""
    for side, out in ((1024, 1024), (1024, 16), (32, 1024)):
        images, crops = torch.full((1, side, side, 3), 255, dtype=torch.uint8), drawn_crops(2, 1, side, out, seed=0)
        result = by_kernels(gpu, images, crops, AS_IT_IS)
        assert torch.equal(result, exact(images, crops, *AS_IT_IS))
        assert (result == 255).all()


def architectures() -> list[str]:
    """The GPUs that the container's image has code for."""
    (versions,) = re.findall(r'TORCH_CUDA_ARCH_LIST="(.*)"', (PROJECT / "docker/Dockerfile").read_text())
    return [f"sm_{version.replace('.', '')}" for version in versions.split(";")]


@pytest.mark.parametrize("architecture", architectures())
def test_the_kernels_compile_for_every_gpu_of_the_image(architecture: str) -> None:
    """NVRTC, which torch brings, makes machine code of both kernels. It needs no GPU and no compiler."""
    code = kernels.compile_source(SOURCE, architecture)
    assert code.startswith(b"\x7fELF")
    assert b"weigh" in code
    assert b"cut" in code


def test_the_driver_gets_the_kernel_and_its_arguments(gpu: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """`launch` loads each kernel once and hands over blocks, threads, stream and arguments. The driver is emulated."""
    from cuda.bindings import driver

    found, starts = [], []

    def find(module: str, name: bytes) -> tuple[int, str]:
        found.append((module, name))
        return 0, name.decode()

    def start(kernel: str, blocks: int, *others: int) -> tuple[int]:
        *shape, stream, pointers, extra = others
        starts.append((*shape, stream, extra))
        gpu.run(SOURCE, kernel, blocks, pointers)
        return (0,)

    for place, name, fake in (
        (driver, "cuModuleLoadData", lambda code: (0, str(code == kernels.compile_source(SOURCE, "sm_90")))),
        (driver, "cuModuleGetFunction", find),
        (driver, "cuLaunchKernel", start),
        (torch.cuda, "device", lambda device: nullcontext()),
        (torch.cuda, "get_device_capability", lambda device: (9, 0)),
        (torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7)),
    ):
        monkeypatch.setattr(place, name, fake)
    images, crops = random_images(2, 40), drawn_crops(9, 2, 40, 33, seed=0)
    try:
        for _ in range(2):
            result = resample.by_kernels(images, crops, *NORMALIZED, torch.contiguous_format)
            assert torch.equal(result, exact(images, crops, *NORMALIZED))
    finally:
        kernels._kernel.cache_clear()
        kernels._module.cache_clear()
    assert found == [("True", b"weigh"), ("True", b"cut")]
    assert starts == [(1, 1, kernels.THREADS, 1, 1, 0, 7, 0)] * 4


def test_what_fails_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that NVRTC does not know, a fault in the source, a missing driver: what failed, and why."""
    from cuda.bindings import driver

    def missing(_: bytes) -> None:
        raise RuntimeError("the library libcuda.so.1 was not found\nhere")

    def check(reason: str, call: Callable[[], object]) -> None:
        with refuses(("train.device", "machine")) as error:
            call()
        assert reason in error.value.faults[0].reason

    wrong = 'extern "C" __global__ void f() { x = 1; }'
    check("--gpu-architecture", lambda: kernels.compile_source(SOURCE, "sm_10"))
    check('identifier "x"', lambda: kernels.compile_source(wrong, "sm_90"))
    monkeypatch.setattr(driver, "cuModuleLoadData", missing)
    check("libcuda.so.1", lambda: kernels._call("cuModuleLoadData", b""))
    monkeypatch.setattr(driver, "cuModuleLoadData", lambda image: (driver.CUresult.CUDA_ERROR_INVALID_IMAGE,))
    check("CUDA_ERROR_INVALID_IMAGE", lambda: kernels._call("cuModuleLoadData", b""))
