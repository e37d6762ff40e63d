"""The answer for an image does not depend on the images beside it, their number, or the number of processes."""

import json
from pathlib import Path

import pytest

from pipeline.answers import classify
from pipeline.answers.classify import Request
from pipeline.base.errors import UserError
from tests.helpers.evaluations import config_of
from tests.helpers.ranks import world_of

MODELS = {"resnet18": 32, "mobilenet_v3_small": 64, "convnext_tiny": 64, "efficientnet_b0": 64,
          "timm/vit_tiny_patch16_224": 224}  # fmt: skip
HEAVY = [pytest.mark.nightly("models of up to 28 million weights in four processes; make test runs resnet18")]


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=[] if name.startswith("resnet") else HEAVY) for name in MODELS]
)
def test_an_answer_has_the_same_bits_in_every_batch(model: str, tmp_path: Path) -> None:
    """50 images in two orders, alone and in groups, with one process and three: one digest of all logits."""
    digests = set()
    for processes in (1, 3):
        logs = [tmp_path / f"{processes}-{rank}.txt" for rank in range(processes)]
        assert world_of(processes, "answers", model, str(MODELS[model]), logs=logs) == [0] * processes
        cases = json.loads(logs[0].read_text())
        assert len(cases) == 4
        digests |= set(cases.values())
    assert len(digests) == 1


def test_predict_gives_a_photo_one_answer(with_onnx: Path) -> None:
    """Alone, in two orders, and twice in one request, by torch and by ONNX: the same probabilities, bit for bit."""
    config, refusals = config_of(with_onnx), list[UserError]()
    photos = sorted(Path(config.paths.images).rglob("*.png"))[:9]
    for file in (classify.WEIGHTS, classify.ONNX):

        def probabilities(*paths: Path, model: Path = Path(config.paths.models) / file) -> list[tuple[str, object]]:
            answers = classify.answers(Request(paths, model), config, refusals)
            return [(answer.path, answer.probabilities) for answer in answers]

        alone = dict(answer for photo in photos for answer in probabilities(photo))
        assert len(alone) == 9
        for order in (photos, photos[::-1], [*photos, photos[4], photos[4]]):
            assert all(alone[path] == answer for path, answer in probabilities(*order))
    assert refusals == []
