"""What only a GPU shows: every case of benchmarks/gpu_proof.py as a test. And, on any machine, that the proof runs.

make test-gpu                    needs one NVIDIA GPU; the cases of Apex need Apex with its three extensions
"""

import json
from pathlib import Path
from typing import get_args

import pytest

from benchmarks import gpu_proof
from pipeline import params


@pytest.mark.gpu
@pytest.mark.parametrize("name", gpu_proof.CASES)
def test_on_a_gpu(name: str) -> None:
    """The promise that the case's own docstring says holds on this GPU, in fresh processes, without a warning."""
    if lacking := gpu_proof.lacks(gpu_proof.CASES[name], "cuda"):
        pytest.skip(lacking)
    result = gpu_proof.prove(name, "cuda")
    assert result["outcome"] == "held", result
    assert result["warnings"] == []


def test_every_precision_is_trained_in_every_parallel_way() -> None:
    """But for dp, which needs several GPUs to be more than single, and for what is refused: bf16 under Apex's DDP, and
    Apex's levels with elastic."""
    ways = {
        (precision, parallel)
        for precision in get_args(params.Precision)
        for parallel in get_args(params.Parallel)
        if parallel != "dp"
        and (precision, parallel) != ("bf16", "apex_ddp")
        and (precision in gpu_proof.NATIVE or parallel != "elastic")
    }
    assert {tuple(name.split("/")[1:]) for name in gpu_proof.CASES if name.startswith("trains/")} == ways


def test_the_dry_run_shows_what_a_cpu_can_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Native cases run for real, on two ranks; the others are listed with what they need; a second start goes on."""
    asked = ["--device", "cpu", "--out", str(tmp_path), "--only", "accumulation/fp32"]
    assert gpu_proof.main(asked) == 0
    report = json.loads((tmp_path / "gpu_proof_cpu.json").read_text())
    ran, skipped = (report["cases"][f"accumulation/fp32/{parallel}"] for parallel in ("ddp", "apex_ddp"))
    assert ran["outcome"] == "held"
    assert ran["figures"]["difference"] < 1e-4
    assert ran["warnings"] == []
    assert skipped == {"outcome": "skipped", "reason": "needs a GPU and Apex with its extensions"}
    assert "1 held, 0 broken, 1 skipped" in capsys.readouterr().out
    report["cases"]["accumulation/fp32/ddp"] |= {"outcome": "broken", "reason": "as said by this test"}
    (tmp_path / "gpu_proof_cpu.json").write_text(json.dumps(report))
    assert gpu_proof.main(asked) == 1  # what is in the report is not run again, and a broken promise is said
    assert "as said by this test" in capsys.readouterr().out


def test_a_broken_promise_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case whose process fails is broken, and the last line that it said is the reason."""
    monkeypatch.setattr(gpu_proof, "CHILD", "raise AssertionError('the loss falls')")
    result = gpu_proof.prove("trains/fp32/single", "cpu")
    assert (result["outcome"], result["reason"]) == ("broken", "AssertionError: the loss falls")


@pytest.mark.parametrize(
    ("asked", "said"),
    [(["--only", "nothing"], "--only: 'nothing' is in no name of a case"), (["--device", "cpu"], "of another machine")],
)
def test_what_cannot_be_run_is_refused(
    asked: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that no case has; a report of another machine or commit, which would be mixed with this one's."""
    (tmp_path / "gpu_proof_cpu.json").write_text('{"of": {}, "cases": {}}')
    with pytest.raises(SystemExit) as ended:
        gpu_proof.main([*asked, "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
