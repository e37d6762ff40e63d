"""What the CPU computes for answers, heads and pages has the same bits on every kind of x86-64 CPU."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from pipeline.base import elementary
from pipeline.learning import ridge
from pipeline.reporting import thumbnails
from pipeline.studies import pooling
from tests.test_elementary import logits
from tests.test_ridge import L2, drawn

pytestmark = pytest.mark.slow(
    "starts NumPy and torch as each kind of CPU; make test has the same functions as one kind"
)

KINDS: tuple[dict[str, str], ...] = (
    {},
    {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F",
     "OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "1", "JSIMD_FORCENONE": "1"},
    {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "2", "JSIMD_FORCESSE2": "1"},
)  # fmt: skip
DIGEST = "fa7c39d10c37b7a30f19de27eabf992797fb71bbb4d15d97422b5896a9ca0c1f"


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def log_probabilities() -> str:
    log_probs = elementary.log_softmax(logits())
    return digest(log_probs.tobytes(), elementary.exp(log_probs).tobytes())


def solved_head() -> str:
    head = ridge.solve(*drawn(500, 150), np.array([1.0, 0.3, 2.0, 1.0]), L2)
    return digest(head.weight.tobytes(), head.bias.tobytes())


def figures_of_folds() -> str:
    """Of 2 to 299 images: the number of their figures, and a digest."""
    random, text = np.random.default_rng(0), ""
    for images in range(2, 300):
        answers, labels = random.dirichlet([1.0] * 3, (2, images)), np.arange(images) % 3
        paths = tuple(map(str, labels))
        predictions = pooling.FoldPredictions(("a", "b", "c"), paths, labels, labels % 2, (1, 2), answers)
        text += f"{pooling.figures(predictions)} {pooling.table(predictions)}"
    return f"{text.count('over_seeds=')} {digest(text.encode())}"


def sources_of_thumbnails() -> str:
    noise = np.random.default_rng(0).integers(0, 256, (40, 30, 30, 3), np.uint8)
    smooth = [Image.fromarray(part).resize((97 + k, 131 - k), Image.Resampling.BICUBIC) for k, part in enumerate(noise)]
    odd = [Image.fromarray(part[: 1 + k, : 30 - k // 2]) for k, part in enumerate(noise[:30])]
    large = [image.resize((500, 333)) for image in smooth[:5]]
    return digest(*(thumbnails.encode(image, image.size).source.encode() for image in smooth + odd + large))


def say() -> None:
    print(log_probabilities(), solved_head(), figures_of_folds(), sources_of_thumbnails(), sep="\n")


def test_every_kind_of_cpu_computes_the_same_bits() -> None:
    """With other instructions, NumPy's exp and log, OpenBLAS and libjpeg-turbo run other code. The first are known."""
    command = [sys.executable, "-c", "from tests.test_cpus import say; say()"]
    starts = [
        subprocess.run(command, env={**os.environ, **kind}, capture_output=True, text=True, check=True).stdout
        for kind in KINDS
    ]
    first, _, figures, _ = starts[0].splitlines()
    assert starts == starts[:1] * len(KINDS)
    assert (first, figures.split()[0]) == (DIGEST, "298")
