"""Recorded steps: which, on which ranks, where the files are, and that an incomplete recording leaves nothing."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.training_runs import StopAfter, metric_values, rows_of
from trainfleet.errors import InputError
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.recipe.schema_reports import Profile
from trainfleet.training.report.page import render, write_report
from trainfleet.training.report.run_summary import read_run_summary
from trainfleet.training.stores import Store, StoreError, open_store
from trainfleet.training.trainer import profiling
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.profiling import StepProfiler

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
TRACE = "rank-0-steps-3-4.trace.json.gz"


def files(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "profile").glob("**/*") if path.is_file())


def recorded_steps(trace: Path) -> list[str]:
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    assert any("mm" in str(each.get("name")) for each in events), "the trace has no matrix product"
    return sorted({each["name"] for each in events if re.fullmatch(r"step \d+", str(each.get("name")))})


def test_the_steps_are_recorded_reported_and_linked_and_change_no_loss(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    run(tiny("steps=6"), tmp_path / "plain")
    run(tiny("steps=6", "profile={steps: 3-4}"), tmp_path / "run")
    assert metric_values(rows_of(tmp_path / "run"), "loss") == metric_values(
        rows_of(tmp_path / "plain"), "loss"
    )
    assert files(tmp_path / "run") == [TRACE]
    assert recorded_steps(tmp_path / "run" / "profile" / TRACE) == ["step 3", "step 4"]
    (event,) = [row for row in rows_of(tmp_path / "run") if row["kind"] == "event"]
    assert (event["step"], event["what"]) == (4, "profile")
    assert event["text"] == f"steps 3 to 4 are recorded in {tmp_path / 'run' / 'profile' / TRACE}"
    page = tmp_path / "run" / "report.html"
    write_report(tmp_path / "run", page)
    assert f'<a href="profile/{TRACE}">{TRACE}</a>' in page.read_text()
    assert not (tmp_path / "plain" / "profile").exists()
    write_report(tmp_path / "plain", page)
    assert "Profiles" not in page.read_text()


@pytest.mark.parametrize("overrides", [(), ("profile={steps: 3-4, ranks: [0]}",)], ids=["none", "other rank"])
def test_nothing_is_recorded_otherwise(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    def refused(**_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(torch.profiler, "profile", refused)
    recipe = tiny("steps=6", *overrides)
    one = StepProfiler(recipe.profile, RunContext(tmp_path, rank=1, world_size=2), refused, refused)
    for number in range(1, 7):
        with one.step(number):
            pass
    if not overrides:
        run(recipe, tmp_path / "run")


def test_a_run_that_ends_before_the_last_step_leaves_nothing_and_a_resumed_one_records_what_is_to_come(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    recipe = tiny("steps=8", "profile={steps: 3-4}")
    run(recipe, tmp_path, should_stop=StopAfter(3))
    assert files(tmp_path) == []
    assert not torch.autograd._profiler_enabled()
    run(tiny("steps=8", "profile={steps: 6}"), tmp_path)
    assert files(tmp_path) == ["rank-0-steps-6-6.trace.json.gz"]


def test_an_error_in_a_recorded_step_ends_the_recording(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(profiling.StepProfiler, "_end", failing)
    with pytest.raises(ZeroDivisionError):
        run(tiny("steps=6", "profile={steps: 3-4}"), tmp_path)
    assert not torch.autograd._profiler_enabled()
    assert files(tmp_path) == []


def test_a_profile_that_cannot_be_written_is_reported_and_the_run_continues(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.put

    def full(self: Store, path: str, data: bytes) -> Any:
        if path.startswith("profile/"):
            raise StoreError("cannot write: the disk is full")
        return real(self, path, data)

    monkeypatch.setattr(Store, "put", full)
    assert run(tiny("steps=6", "profile={steps: 3-4}"), tmp_path).step == 6
    (event,) = [row for row in rows_of(tmp_path) if row["kind"] == "event"]
    assert event["what"] == "profile_failed"
    assert "the disk is full" in event["text"]


def test_the_report_names_the_profile_of_a_run_below_a_url_or_none_without_its_store(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    run(tiny("steps=6", "profile={steps: 3-4}"), tmp_path)
    summary = read_run_summary(tmp_path)
    assert summary.profiles is not None
    assert list(summary.profiles) == [TRACE]
    assert read_run_summary(f"file://{tmp_path}").profiles == summary.profiles
    below_a_url = replace(summary, home="s3://bucket/run")
    assert f"<td>s3://bucket/run/profile/{TRACE}</td>" in render(below_a_url)
    assert "Profiles" not in render(replace(summary, profiles=None))


def test_a_gpu_records_its_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for a GPU: torch's functions for its memory are replaced."""
    calls: list[Any] = []
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda **given: calls.append(("history", given))
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append(("synchronize", device)))

    def dump(path: str) -> None:
        calls.append("dump")
        Path(path).write_bytes(b"memory")

    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dump)
    context = RunContext(tmp_path, rank=2, world_size=3, device="cuda:0")
    one = StepProfiler(
        Profile(steps="1-2", ranks=(0, 2)), context, lambda: open_store(str(tmp_path)), lambda *_: None
    )
    for number in (1, 2, 3):
        with one.step(number):
            torch.ones(2, 2) @ torch.ones(2, 2)
    assert calls == [
        ("history", {"max_entries": profiling.MEMORY_EVENTS}),
        ("synchronize", "cuda:0"),
        "dump",
        ("history", {"enabled": None}),
    ]
    assert files(tmp_path) == ["rank-2-steps-1-2.memory.pickle", "rank-2-steps-1-2.trace.json.gz"]
    assert (tmp_path / "profile" / "rank-2-steps-1-2.memory.pickle").read_bytes() == b"memory"


MISTAKES = [
    ("profile={steps: 4-3}", "profile.steps: 4 is after 3", "profile.steps=3-4"),
    ("profile={steps: 10-14}", "step 14 is never recorded", "steps within the run"),
    (
        "profile={steps: 3, ranks: [0, 4]}",
        "profile.ranks: there is no rank 4 among 1 workers",
        "ranks below 1",
    ),
    ("profile={ranks: [0, 1]}", "profile.ranks: records nothing without steps", "profile.steps=10-14"),
    ("profile={steps: 0-3}", "profile.steps", None),
    ("profile={steps: soon}", "profile.steps", None),
]


@pytest.mark.parametrize(("override", "message", "fix"), MISTAKES)
def test_steps_and_ranks_that_cannot_be_recorded_are_refused(
    tiny: Make, override: str, message: str, fix: str | None
) -> None:
    with pytest.raises(InputError) as caught:
        tiny("steps=12", override)
    assert message in str(caught.value)
    assert fix is None or caught.value.problems[0].fix == fix


@pytest.mark.parametrize(("given", "steps"), [("7", (7, 7)), ("10-14", (10, 14)), ("null", None)])
def test_steps_are_one_or_a_range(tiny: Make, given: str, steps: tuple[int, int] | None) -> None:
    assert tiny(f"profile.steps={given}", "steps=20").profile.first_and_last() == steps
