"""`limits`: a run that has used up its time or money saves, ends and says so, and a higher limit resumes it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch import launch_elsewhere
from tests.training.launches import wait_for
from tests.training.pages import written
from tests.training.test_loop import losses
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.process import Ended
from trainfleet.training.launch import base, deadline, supervise
from trainfleet.training.launch.deadline import Deadline
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.run_record import Reported
from trainfleet.training.launch.supervise import Outcome, _raise_for
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Limits, Recipe
from trainfleet.training.report import read_run_summary
from trainfleet.training.runs.limits import Meter, Used, require_something_left, used_by
from trainfleet.training.runs.reader import read_rows, read_run
from trainfleet.training.runtime.progress import dense_line
from trainfleet.training.trainer.context import RunResult

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
RunRanks = Callable[..., list[int]]
NO_TIME = "limits.max_hours=1e-7"


def test_a_run_that_has_used_its_time_saves_and_a_higher_limit_resumes_it(
    tmp_path: Path, tiny: Make, run: Run
) -> None:
    whole, limited = tmp_path / "whole", tmp_path / "limited"
    run(tiny(), whole)
    ended = run(tiny(NO_TIME), limited)
    assert (ended.status, ended.step) == ("stopped", 1)
    assert str(ended.limits[0]).startswith("limits.max_hours: the run has used ")
    assert ended.checkpoint is not None
    with pytest.raises(InputError, match="the run has reached its limit"):
        run(tiny(NO_TIME), limited)
    finished = run(tiny("limits.max_hours=1"), limited)
    assert (finished.status, finished.resumed_from, finished.limits) == ("finished", 1, ())
    assert losses(limited) == pytest.approx(losses(whole))
    starts = read_run(limited)["starts"]
    assert [each["from_step"] for each in starts] == [0, 1]
    assert all(0 < each["held_seconds"] < 300 for each in starts)
    assert "usd_per_hour" not in starts[0]


def test_all_ranks_end_at_the_same_step(tmp_path: Path, tiny: Make, run_ranks: RunRanks) -> None:
    assert run_ranks(tiny(NO_TIME), tmp_path / "run", 2) == [0, 0]
    record = read_run(tmp_path / "run")
    assert (record["status"], record["step"]) == ("stopped", 1)


def test_money_is_time_times_the_price_of_the_machines(tmp_path: Path, tiny: Make, run: Run) -> None:
    ended = run(tiny("limits.max_usd=0.001", "log.every=1"), tmp_path, usd_per_hour=3600.0)
    assert ended.status == "stopped"
    assert "of $0.00" in ended.limits[0].what
    (start,) = read_run(tmp_path)["starts"]
    assert start["usd_per_hour"] == 3600.0
    row = read_rows(tmp_path).of("train")[0]
    assert 0 < row["usd"] <= start["held_seconds"]
    assert f"  ${row['usd']:,.2f}  left " in dense_line(row)


def test_a_run_without_a_limit_or_a_price_records_its_time_only(tmp_path: Path, tiny: Make, run: Run) -> None:
    assert run(tiny(), tmp_path).limits == ()
    (start,) = read_run(tmp_path)["starts"]
    assert start["held_seconds"] > 0
    assert all("usd" not in row for row in read_rows(tmp_path).of("train"))


def test_the_time_of_all_starts_counts_and_the_time_between_them_does_not() -> None:
    starts = [
        {"held_seconds": 1800.0, "usd_per_hour": 4.0},
        {"at": "killed before its first checkpoint"},
        {"held_seconds": 3600.0},
    ]
    assert used_by(starts) == Used(1.5, 2.0)
    assert used_by([]) == Used(0.0, None)
    now = time.monotonic()
    meter = Meter(Limits(max_hours=1.5), None, now, starts)
    assert [each.where for each in meter.reached()] == ["limits.max_hours"]
    assert Meter(Limits(), None, now, starts).reached() == []
    require_something_left(Limits(max_hours=2, max_usd=3), starts)
    with pytest.raises(InputError, match=r"\$2.00 of \$1.50"):
        require_something_left(Limits(max_hours=2, max_usd=1.5), starts)


def test_a_launch_reports_the_limit_as_its_end() -> None:
    reported = Reported()
    limits = ["the run has used 2.00 of 2 hours"]
    reported.on_event(
        {"kind": "result", "status": "stopped", "step": 7, "metrics": {}, "limits": limits}, 1.0
    )
    with pytest.raises(
        TrainfleetError, match=r"reached its limit; step 7 is saved\n.*2.00 of 2 hours"
    ) as caught:
        _raise_for("stopped", reported, Path("runs/a"), Ended(0, None))
    assert caught.value.exit_code == 1


def test_a_limit_may_change_between_starts_and_a_price_is_rejected_where_there_is_none(
    trainfleet: Callable[..., Any], tmp_path: Path
) -> None:
    done = trainfleet("launch", "lm-tiny", "--on", "torchrun", "limits.max_usd=1", "--storage", str(tmp_path))
    assert done.returncode == 2
    assert "limits.max_usd: this machine has no price" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_record_of_a_start_is_json(tmp_path: Path, tiny: Make, run: Run) -> None:
    run(tiny(NO_TIME), tmp_path, usd_per_hour=0.5)
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["starts"][0]["usd_per_hour"] == 0.5


def test_a_run_that_reached_its_limit_is_not_launched_again_but_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(base.LAUNCHERS, "elsewhere", f"{launch_elsewhere.__name__}:Elsewhere")
    followed = Outcome(tmp_path, {})
    monkeypatch.setattr(supervise._Launch, "run", lambda *_: followed)
    folder = tmp_path / "runs" / "lm-tiny"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"starts": [{"held_seconds": 7200.0}]}))

    def start(*, attached: bool) -> Outcome:
        options = launch_elsewhere.Options(file=str(tmp_path / "run"), attached=attached)
        overrides = ("limits.max_hours=1",)
        storage = str(tmp_path / "runs")
        request = Request("lm-tiny", on="elsewhere", storage=storage, overrides=overrides, options=options)
        return supervise.start(request)

    with pytest.raises(InputError, match="the run has reached its limit"):
        start(attached=False)
    assert start(attached=True) is followed


@pytest.mark.parametrize("attached", [False, True], ids=["launch", "attach"])
def test_a_launcher_ends_a_run_that_does_not_keep_its_limit(
    attached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks hang, or never start, and hold their machines."""
    monkeypatch.setitem(base.LAUNCHERS, "elsewhere", f"{launch_elsewhere.__name__}:Elsewhere")
    monkeypatch.setattr(deadline, "LATE_S", -3600.0)
    reported: list[str] = []
    monkeypatch.setattr(supervise, "notify_failure", lambda *_, text, **__: reported.append(text))
    file = tmp_path / "run"

    def start() -> None:
        options = launch_elsewhere.Options(file=str(file), attached=attached)
        overrides = ("limits.max_hours=1.0005",)
        storage = str(tmp_path / "runs")
        supervise.start(
            Request("lm-tiny", on="elsewhere", storage=storage, overrides=overrides, options=options)
        )

    if attached:

        def leave() -> None:
            wait_for(file.exists, "no run", 60)
            time.sleep(4)  # longer than the limit
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=leave, daemon=True).start()
        start()
        assert file.exists(), "who only follows a run must not end it"
        return
    with pytest.raises(TrainfleetError, match=r"did not end at its limit(.|\n)*max_hours=1.0005") as caught:
        start()
    assert caught.value.exit_code == 1
    assert not file.exists()
    assert [text.partition(",")[0] for text in reported] == ["the run did not end at its limit"]


def test_the_deadline_of_a_launch_counts_all_starts_and_no_queue() -> None:
    class Priced(launch_elsewhere.Elsewhere):
        def usd_per_hour(self, recipe: Recipe, target: Target) -> float | None:
            return 4.0

    def passed(seconds: float, *limits: str, starts: tuple[dict[str, float], ...] = ()) -> bool:
        target = Target(Request("lm-tiny", on="elsewhere"), (), Path("runs/a"))
        made = Deadline(Priced(), load_recipe("lm-tiny", limits), target, starts)
        reported = Reported(admitted_s=100.0, requeued_s=50.0)
        return made.passed(reported, seconds)

    late = 150 + 3600 + deadline.LATE_S
    assert not passed(10**9)
    assert [passed(each, "limits.max_hours=1") for each in (late - 1, late + 1)] == [False, True]
    assert [passed(each, "limits.max_usd=4") for each in (late - 1, late + 1)] == [False, True]
    half = ({"held_seconds": 1800.0, "usd_per_hour": 4.0},)
    assert passed(late - 1799, "limits.max_hours=1", starts=half)
    assert passed(late - 1799, "limits.max_usd=4", starts=half)
    assert not passed(late - 1801, "limits.max_usd=4", starts=half)


def test_the_report_shows_the_price_of_the_time_for_which_machines_were_held(tmp_path: Path) -> None:
    starts = [
        {"held_seconds": 1800.0, "usd_per_hour": 4.0},
        {"held_seconds": "long", "usd_per_hour": 4.0},
        {"held_seconds": 900.0, "usd_per_hour": 8.0},
        {"at": "killed before its first checkpoint"},
    ]
    pool = {"name": "l4", "usd_per_hour": 77.0, "per_node": 1}
    place = {"name": "prod", "cloud": "aws", "pools": [pool]}
    launches = [{"workers": 2, "seconds": 3600.0, "platform": place}]
    record = {"version": 1, "name": "a", "status": "finished", "starts": starts, "launches": launches}
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 1, "loss": 2.0}) + "\n")
    (tmp_path / "recipe.yaml").write_text("name: a\nlimits: {max_usd: 9.5, max_hours: 2}\n")
    found = read_run_summary(tmp_path).figures()
    assert (found["held_seconds"], found["usd"]) == (2700.0, 4.0)
    page = written(tmp_path)
    for text in ("$4.00", "of at most $9.50", "0.75 h", "of at most 2 hours"):
        assert text in page
