"""Evaluation gives the run's own metrics on any number of ranks, writes them atomically, and rejects what
does not exist.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.ranks import start_ranks
from trainfleet.errors import InputError
from trainfleet.training.evaluate import evaluate, stored, work
from trainfleet.training.runs.reader import read_rows

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_latest_checkpoint_has_the_metrics_of_the_run(run_copy: Path, split: str) -> None:
    found = evaluate(str(run_copy), split, "newest")
    own = next(row for row in reversed(read_rows(run_copy).rows) if row["kind"] == split)
    assert found.metrics == pytest.approx(
        {name: value for name, value in own.items() if name.startswith(split)}, rel=1e-9
    )
    assert (found.step, found.samples, found.samples == found.of) == (12, found.of, True)


def test_metrics_are_stored_by_split_and_step_for_one_checkpoint(run_copy: Path) -> None:
    found = evaluate(str(run_copy / "checkpoints" / "step-00000008"), "test")
    assert Path(found.file) == run_copy / "evaluations" / "test-8.json"
    assert json.loads(Path(found.file).read_text())["metrics"] == found.metrics
    assert stored(found.checkpoint, 8, "test") == found
    marker = Path(found.checkpoint) / "COMMITTED"
    marker.write_text(marker.read_text() + "\n")
    assert stored(found.checkpoint, 8, "test") is None


def test_a_partial_evaluation_is_not_reused_for_the_whole_split(run_copy: Path) -> None:
    found = evaluate(str(run_copy), "test", "newest", samples=7)
    assert (found.samples, found.samples < found.of) == (7, True)
    assert stored(found.checkpoint, found.step, "test") is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ranks", [2, 3])
def test_metrics_do_not_depend_on_the_number_of_ranks(run_copy: Path, tmp_path: Path, ranks: int) -> None:
    job = {
        "source": str(run_copy),
        "split": "test",
        "which": "newest",
        "samples": 13,
    }  # 4 + 4 + 4 + 1: uneven for both

    def rank(number: int) -> None:
        found = work(job, lambda *_, **__: None)
        (tmp_path / f"rank{number}.json").write_text(json.dumps(found))

    assert start_ranks(rank, ranks) == [0] * ranks
    alone = evaluate(str(run_copy), "test", "newest", samples=13)
    for number in range(ranks):
        assert json.loads((tmp_path / f"rank{number}.json").read_text())["metrics"] == pytest.approx(
            alone.metrics, rel=1e-9
        )


def test_progress_counts_up_to_the_end(run_copy: Path) -> None:
    seen: list[tuple[int, int]] = []
    evaluate(str(run_copy), "test", samples=10, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("RUN", "tset"), "did you mean `test`?"),
        (("RUN", "test", "step-5"), "step-00000004, step-00000008, step-00000012"),
        (("nowhere", "test"), "holds no checkpoints"),
    ],
)
def test_an_unknown_split_checkpoint_or_run_is_rejected(
    run_dir: Path, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        evaluate(*[str(run_dir) if each == "RUN" else each for each in arguments])


@pytest.mark.launch
def test_more_workers_than_gpus_are_rejected(run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainfleet.training.runtime.local_resources.gpus", lambda: 2)
    with pytest.raises(InputError) as raised:
        evaluate(str(run_copy), workers=3)
    assert "3 processes need a GPU each, this machine has 2" in str(raised.value)


@pytest.mark.deep
def test_the_command_distributes_samples_over_processes(trainfleet: Command, run_copy: Path) -> None:
    done = trainfleet("evaluate", str(run_copy), "--workers", "2", "--which", "newest", "--json", timeout=280)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    own = next(row for row in read_rows(run_copy).rows if row["kind"] == "test")
    assert document["workers"] == 2
    assert document["metrics"]["test/loss"] == pytest.approx(own["test/loss"], rel=1e-9)


@pytest.mark.launch
def test_an_error_on_a_rank_is_one_message(trainfleet: Command, run_copy: Path) -> None:
    for weights in run_copy.glob("checkpoints/step-00000012/*"):
        if weights.name != "COMMITTED":
            weights.write_bytes(b"torn")
    done = trainfleet("evaluate", str(run_copy), "--workers", "2", "--which", "step-12", timeout=280)
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.deep
def test_rows_are_measured_by_the_command_and_its_other_options_refused(
    trainfleet: Command, run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "rows.txt").write_text("the tensor sums\na step\n")
    command = ("evaluate", str(run_dir), "--rows", str(tmp_path / "rows.txt"))
    done = trainfleet(*command, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["rows"], set(found["metrics"])) == (2, {"loss", "nats_per_byte", "accuracy"})
    refused = trainfleet(*command, "--split", "test", "--workers", "2")
    assert refused.returncode == 2
    assert "--split" in refused.stderr
    assert "--workers" in refused.stderr
