"""`benchmarks.gpu`: targets, failed parts, time limits, and the whole of it in small, without Ray."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import command, gpu, gpu_parts, ranks
from benchmarks.gpu import Row
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.checkpoint import Checkpoints
from trainfleet.training.recipe.schema import CheckpointConfig
from trainfleet.training.stores import open_store
from trainfleet.training.stores.folder import FolderOutput

OPTIONAL = ("ray", "tensorboard", "plotly", "jinja2", "lightning_fabric", "typer", "rich")
"""Packages that a machine for `make gpu-check` need not have."""

SPEED: dict[str, Any] = {
    "tokens_per_step": 1000,
    "step_seconds": {"ours": 0.5, "minimal": 0.49, "torchtitan": 0.6},
    "ratio": {"minimal": 0.5 / 0.49, "torchtitan": 0.5 / 0.6},
    "pairs": {"minimal": [1.0, 1.04], "torchtitan": [0.8, 0.85]},
    "flops_per_token": 4.0,
    "peak_flops": 20_000.0,
    "device": "NVIDIA H100 80GB HBM3",
}
RUN: dict[str, Any] = {
    "parameters": 10,
    "graphs": {"first": 3, "all": 3, "breaks": 0},
    "reasons": [],
    "waits": {},
    "peak_bytes": 2**30,
    "stalls": [9.0, 0.2, 0.3, 0.1],
    "copy_seconds": 0.1,
}


def by_name(rows: list[Row]) -> dict[str, Row]:
    return {each.what: each for each in rows}


def test_the_speed_is_compared_with_each_loop_and_the_peak() -> None:
    rows = by_name(gpu.speed_rows("lm-1b", SPEED))
    assert rows["tokens/s"].value == 2000
    assert rows["MFU"].value == 0.4
    assert rows["MFU"].missed
    assert rows["speed / minimal loop"].value == 0.98
    assert not rows["speed / minimal loop"].missed
    assert rows["speed / torchtitan-style loop"].value == 1.2
    assert rows["speed / torchtitan-style loop"].target is None


@pytest.mark.parametrize(
    ("recipe", "device", "peak"),
    [
        ("lm-124m", "NVIDIA H100 80GB HBM3", 20_000.0),
        ("lm-1b", "NVIDIA L4", 20_000.0),
        ("lm-1b", "CPU", None),
    ],
)
def test_the_target_of_mfu_is_of_one_recipe_on_one_device(
    recipe: str, device: str, peak: float | None
) -> None:
    row = by_name(gpu.speed_rows(recipe, SPEED | {"peak_flops": peak, "device": device}))["MFU"]
    assert row.target is None
    assert not row.missed
    assert row.value == (0.4 if peak else None)


def test_a_slower_step_than_the_minimal_loop_s_misses_the_target() -> None:
    slow = SPEED | {"ratio": {"minimal": 1.05}, "pairs": {"minimal": [1.05]}}
    assert by_name(gpu.speed_rows("lm-124m", slow))["speed / minimal loop"].missed


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, []),
        ({"graphs": {"first": 3, "all": 4, "breaks": 0}}, ["graphs compiled after the first log"]),
        ({"graphs": {"first": 3, "all": 3, "breaks": 2}, "reasons": ["a print"]}, ["graph breaks"]),
        ({"waits": {"cudaStreamSynchronize": 0.5}}, ["waits for the device per step"]),
        ({"stalls": [0.1, 0.3, 0.3, 0.3]}, ["stall of a save / plain copy of its bytes"]),
    ],
)
def test_a_run_misses_the_targets_of_what_is_wrong_with_it(change: dict[str, Any], missed: list[str]) -> None:
    rows = gpu.run_rows("lm-124m", [RUN | change, RUN | {"stalls": []}], on_gpu=True)
    assert [each.what for each in rows if each.missed] == missed
    assert not [each for each in rows if each.error]


def test_a_run_that_compiles_nothing_or_records_nothing_has_failed() -> None:
    nothing = RUN | {"graphs": {"first": 0, "all": 0, "breaks": 0}, "waits": None}
    rows = by_name(gpu.run_rows("lm-124m", [nothing], on_gpu=True))
    assert rows["compiled graphs"].error == "compile=true has compiled nothing"
    assert rows["waits for the device per step"].error == "the run has written no profile"


def test_the_parts_together_end_within_the_time() -> None:
    limits = [each.speed_s + each.train_s + each.resume_s for each in gpu.CASES.values()]
    assert gpu.DATA_LIMIT_S + sum(limits) <= gpu.TOTAL_S


def test_the_data_is_prepared_for_both_recipes_and_the_ranks_divide_their_batches() -> None:
    for name, case in gpu.CASES.items():
        for gpus in (1, 3, 8):
            changes = gpu.Check(name, case, gpus, 0.0).changes()
            (batch,) = [int(each.partition("=")[2]) for each in changes if each.startswith("batch.global")]
            assert batch % gpus == 0


def test_a_part_that_fails_or_has_no_time_left_is_a_row_and_not_the_end() -> None:
    check = gpu.Check("lm-1b", gpu.CASES["lm-1b"], 1, time.monotonic() + 60)
    limits = []

    def run(limit: float) -> list[Row]:
        limits.append(limit)
        raise TrainfleetError(f"rank 0 failed: OutOfMemoryError: CUDA out of memory. {'x' * 400}")

    (row,) = check.part("speed", run, 300)
    assert limits[0] <= 60
    assert row.error is not None
    assert "CUDA out of memory" in row.error
    assert len(row.error) <= 300
    assert not row.missed
    check.ends = time.monotonic() - 1
    (row,) = check.part("speed", run, 300)
    assert row.error == "not started: the 20 minutes are used up"
    assert len(limits) == 1


def test_nothing_is_resumed_after_a_run_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> list[Row]:
        raise TrainfleetError("rank 0 failed")

    monkeypatch.setattr(gpu.Check, "speed", fails)
    monkeypatch.setattr(gpu.Check, "train", fails)
    monkeypatch.setattr(gpu.Check, "resume", lambda *_: pytest.fail("resumed"))
    rows = gpu.Check("lm-1b", gpu.CASES["lm-1b"], 1, time.monotonic() + 60).rows()
    assert [each.what for each in rows] == ["speed", "a run with saves", "resume"]
    assert rows[-1].error == "not started: there is no run to resume"


def document(missed: bool = False, error: str | None = None) -> dict[str, Any]:
    row = {"case": "lm-1b", "what": "MFU", "text": "40.0%", "target": (">=", 0.45), "missed": missed}
    return {
        "date": "2026-01-02",
        "machine": "a machine",
        "load": 1.0,
        "load_at_start": 0.5,
        "gpus": 1,
        "check_only": False,
        "minutes": 3.0,
        "rows": [row | {"error": error}],
        "missed": ["lm-1b: MFU is 40.0%"] if missed else [],
        "failed": [f"lm-1b: MFU: {error}"] if error else [],
    }


@pytest.mark.parametrize(
    ("given", "code", "expected"),
    [
        (document(), 0, "No target was missed."),
        (document(missed=True), 1, "Missed targets:\n- lm-1b: MFU is 40.0%"),
        (document(error="out of memory"), 1, "Parts that failed:\n- lm-1b: MFU: out of memory"),
    ],
)
def test_the_exit_code_and_the_list_say_what_was_missed(
    given: dict[str, Any],
    code: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert command.run(gpu.__doc__, "recipe", lambda *_: given, gpu.show, gpu.passed) == code
    assert expected in capsys.readouterr().out


def test_the_benchmark_sees_a_checkpoint_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, release = FolderOutput.close, threading.Event()

    def held(self: FolderOutput) -> None:
        assert release.wait(30)
        close(self)

    monkeypatch.setattr(FolderOutput, "close", held)
    checkpoints = Checkpoints(open_store(str(tmp_path)), CheckpointConfig(), lambda _what, _text: None)
    assert not gpu_parts._writing()
    checkpoints.save(1, {"weights": torch.ones(2)}, {}, {}, {})
    assert gpu_parts._writing()
    release.set()
    checkpoints.finish()
    assert not gpu_parts._writing()


def test_waits_are_counted_per_recorded_step(tmp_path: Path) -> None:
    def event(name: str, ts: float, cat: str = "cuda_runtime", dur: float = 1) -> dict[str, Any]:
        return {"name": name, "ts": ts, "dur": dur, "cat": cat}

    events = [
        event("step 3", 100, "user_annotation", 50),
        event("step 4", 200, "user_annotation", 50),
        event("step 3", 400, "gpu_user_annotation", 500),
        event("cudaStreamSynchronize", 110),
        event("cudaStreamSynchronize", 210),
        event("cudaStreamSynchronize", 220),
        event("cudaEventSynchronize", 215),
        event("cudaDeviceSynchronize", 600),  # the profiler's own
        event("Memcpy HtoD (Pageable -> Device)", 300, "gpu_memcpy"),
        event("Memcpy HtoD (Pinned -> Device)", 300, "gpu_memcpy"),
        {"name": "process_name", "ph": "M"},
    ]
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert gpu_parts.read_waits(trace) == {
        "Memcpy HtoD (Pageable -> Device)": 0.5,
        "cudaStreamSynchronize": 1.5,
    }
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": events[3:]}).encode()))
    with pytest.raises(TrainfleetError, match="has no step"):
        gpu_parts.read_waits(trace)


def limits(case: gpu.Case) -> float:
    return case.speed_s + case.train_s + case.resume_s


def test_the_limits_of_all_parts_add_up_to_twenty_minutes() -> None:
    assert gpu.DATA_LIMIT_S + sum(map(limits, gpu.CASES.values())) <= gpu.TOTAL_S == 1200


PARTS = [
    (gpu.PARTS, None, ["speed", "train", "resume"], []),
    (("speed",), None, ["speed"], []),
    (("train", "resume"), None, ["train", "resume"], []),
    (("train",), None, ["train"], []),
    (gpu.PARTS, "speed", ["speed", "train", "resume"], ["speed"]),
    (gpu.PARTS, "train", ["speed", "train"], ["a run with saves", "resume"]),
]


@pytest.mark.parametrize(("parts", "cut", "started", "named"), PARTS)
def test_chosen_parts_run_and_those_that_are_cut_off_are_named(
    monkeypatch: pytest.MonkeyPatch,
    parts: Sequence[str],
    cut: str | None,
    started: list[str],
    named: list[str],
) -> None:
    ran: list[str] = []

    def part(name: str) -> Any:
        def run(_: gpu.Check, *given: Any) -> list[gpu.Row]:
            ran.append(name)
            assert given[-1] <= 600
            if name == cut:
                raise TrainfleetError("not finished within 9 s")
            return [gpu.Row("case", name, 1.0, "1")]

        return run

    for each in gpu.PARTS:
        monkeypatch.setattr(gpu.Check, each, part(each))
    check = gpu.Check("case", gpu.Case("lm-tiny"), 0, time.monotonic() + 600, parts)
    rows = check.rows()
    assert ran == started
    assert [row.what for row in rows if row.error] == named


@pytest.mark.parametrize(("parts", "message"), [("speeds", "speed,train,resume"), ("resume", "train,resume")])
def test_unknown_parts_are_rejected(parts: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gpu.measure("", smoke=True, parts=parts)


def hang(rank: int, _world_size: int, _settings: dict[str, Any]) -> None:
    time.sleep(600 * rank)


def die(rank: int, _world_size: int, _settings: dict[str, Any]) -> None:
    if rank:
        os._exit(9)
    time.sleep(600)


@pytest.mark.parametrize(
    ("work", "limit", "error"),
    [(hang, 25.0, "not finished within 25 s"), (die, 300.0, "rank 1 died with exit code 9")],
)
@pytest.mark.deep
def test_ranks_that_hang_or_die_end_a_part(work: Any, limit: float, error: str) -> None:
    began = time.monotonic()
    with pytest.raises(TrainfleetError, match=error):
        ranks.start(work, 2, {}, limit)
    assert time.monotonic() - began < 250


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_check_in_small_runs_every_part_without_ray(tmp_path: Path) -> None:
    for name in OPTIONAL:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            f"raise ModuleNotFoundError('{name} is blocked', name='{name}')"
        )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--json", "--recipe", "lm-tiny like lm-1b"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["check_only"]
    assert found["failed"] == found["missed"] == []
    figures = {each["what"]: each["value"] for each in found["rows"]}
    assert figures["tokens/s"] > 0
    assert figures["speed / minimal loop"] > 0
    assert figures["speed / torchtitan-style loop"] > 0
    assert figures["compiled graphs"] > 0
    assert figures["graph breaks"] == figures["graphs compiled after the first log"] == 0
    assert figures["waits for the device per step"] == 0
    assert figures["stall of a save, s"] > 0
    assert figures["start of processes to the first step after a resume (step 25), s"] > 0
