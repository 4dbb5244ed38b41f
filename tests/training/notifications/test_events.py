"""Which events of rank 0 are messages, how often, and what another process of the launch does not repeat."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.notifications.receiver import Receiver, receiving
from trainfleet.training.notifications import Notifier, delivery, notify_failure
from trainfleet.training.notifications.rank import RankNotices
from trainfleet.training.recipe.schema import Limits, Recipe
from trainfleet.training.runs.limits import Meter
from trainfleet.training.runs.schema import Result

Make = Callable[..., Recipe]
NOTICE = "1 machine(s) with ranks [0] will be preempted; saving at step 5"


def notices(
    recipe: Recipe, folder: Path, hook: Receiver, dropped: list[str], launch: str = "1"
) -> RankNotices:
    return RankNotices(Notifier(recipe, folder, launch, {"HOOK": hook.url}, dropped.append))


def result(status: Any = "finished", **fields: Any) -> Result:
    return {
        "status": status,
        "step": 12,
        "metrics": {"test/loss": 2.5},
        "baseline": {},
        "checkpoint": None,
        "resumed_from": 0,
        "run_dir": "runs/a",
        **fields,
    }  # type: ignore[return-value]


def test_each_event_is_sent_once_per_launch_notice_or_limit(tmp_path: Path, tiny: Make) -> None:
    recipe, dropped = tiny("notifications.webhook=HOOK", "name=a-run"), list[str]()

    def worker(hook: Receiver, launch: str, end: Result | None) -> None:
        rank = notices(recipe, tmp_path, hook, dropped, launch)
        rank.on_event({"kind": "event", "what": "resumed", "text": "from x, step 4/12"})
        rank.on_event({"kind": "step", "step": 5, "total": 12})
        rank.on_event({"kind": "step", "step": 6, "total": 12})
        rank.on_event({"kind": "event", "what": "preemption", "text": NOTICE})
        rank.on_event({"kind": "event", "what": "budget", "text": "80% of limits.max_usd=3 is used"})
        rank.on_event({"kind": "event", "what": "checkpoint", "text": "saved"})
        if end is not None:
            rank.ended(end)
        else:
            rank._notifier.close()

    with receiving() as hook:
        worker(hook, "1", None)  # a worker that is killed
        worker(hook, "1", result())  # the one after it
        assert hook.types() == ["run.start", "run.preemption", "run.budget", "run.end"]
        texts = [each.document["data"]["text"] for each in hook.received]
        assert texts[0] == "a-run trains: step 5 of 12 on 1 worker(s), resumed from x, step 4/12"
        assert texts[1] == f"a-run: {NOTICE}"
        assert texts[3] == "a-run finished at step 12"
        hook.received.clear()
        worker(hook, "2", result("stopped", limits=["the run has used 3 of 3 hours"]))
        assert hook.types() == ["run.start", "run.preemption", "run.end"]  # the limit is the run's
        assert (
            hook.received[-1]
            .document["data"]["text"]
            .endswith("stopped at step 12: the run has used 3 of 3 hours")
        )
    assert dropped == []


def test_the_same_limit_of_two_runs_is_two_messages(tmp_path: Path, tiny: Make) -> None:
    """Receivers that get messages of many runs drop those whose id they have seen."""
    with receiving() as hook:
        for name in ("a", "b"):
            recipe = tiny("notifications.webhook=HOOK", f"name={name}")
            rank = notices(recipe, tmp_path / name, hook, [])
            rank.on_event({"kind": "event", "what": "budget", "text": "80% of limits.max_hours=12 is used"})
            rank._notifier.close()
        assert hook.types() == ["run.budget", "run.budget"]
        assert len({each.headers["webhook-id"] for each in hook.received}) == 2


def test_events_that_the_recipe_leaves_out_are_not_sent(tmp_path: Path, tiny: Make) -> None:
    recipe = tiny("notifications.webhook=HOOK", "notifications.events=[end]")
    with receiving() as hook:
        rank = notices(recipe, tmp_path, hook, [])
        rank.on_event({"kind": "step", "step": 1, "total": 12})
        rank.ended(result())
        assert hook.types() == ["run.end"]
        notify_failure(recipe, tmp_path, "1", {"HOOK": hook.url}, text="x", on_dropped=lambda _: None)
        assert hook.types() == ["run.end"]


def test_a_storage_that_fails_does_not_prevent_a_message(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notifications").write_text("a file in place of the folder")
    with receiving() as hook:
        rank = notices(tiny("notifications.webhook=HOOK"), tmp_path, hook, [])
        rank.ended(result())
        assert hook.types() == ["run.end"]


def test_messages_that_nobody_accepts_are_dropped_with_a_word_and_a_count(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainfleet.training.notifications.sender.MAX_WAITING", 2)
    monkeypatch.setattr("trainfleet.training.notifications.sender.CLOSE_S", 0.1)
    dropped: list[str] = []
    blocked, release = threading.Event(), threading.Event()

    def deliver(*_: Any) -> str:
        blocked.set()
        release.wait()
        return "never"

    monkeypatch.setattr(delivery, "deliver", deliver)
    with receiving() as hook:
        rank = notices(tiny("notifications.webhook=HOOK"), tmp_path, hook, dropped)
        for number in range(4):
            rank.on_event({"kind": "event", "what": "preemption", "text": str(number)})
            blocked.wait()
        assert dropped == ["the notification `preemption` did not reach notifications.webhook: 2 others wait"]
        rank._notifier.close(0.05)
        release.set()
        assert len(dropped) == rank.dropped == 4
        assert "the run ended before the server accepted it" in dropped[-1]


def test_an_unexpected_error_of_one_message_does_not_stop_the_later_ones(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, dropped = delivery.deliver, list[str]()

    def deliver(endpoint: Any, message: Any, *rest: Any) -> str:
        if message.event == "preemption":
            raise UnicodeError(f"the address is {endpoint.url}")
        return original(endpoint, message, *rest)

    monkeypatch.setattr(delivery, "deliver", deliver)
    with receiving() as hook:
        rank = notices(tiny("notifications.webhook=HOOK"), tmp_path, hook, dropped)
        rank.on_event({"kind": "event", "what": "preemption", "text": NOTICE})
        rank.ended(result())
        assert hook.types() == ["run.end"]
    why = "the notification `preemption` did not reach notifications.webhook: UnicodeError"
    assert (dropped, rank.dropped) == ([why], 1)


def test_a_run_warns_once_of_each_limit_of_which_most_is_used() -> None:
    starts = [{"held_seconds": 3600.0, "usd_per_hour": 4.0}]
    meter = Meter(Limits(max_hours=1.2, max_usd=4.5), 0.0, time.monotonic(), starts)
    assert meter.nearly_reached() == [
        "80% of limits.max_hours=1.2 is used",
        "80% of limits.max_usd=4.5 is used",
    ]
    assert meter.nearly_reached() == []
    unlimited = Meter(Limits(), 1.0, meter.began, starts)
    assert unlimited.nearly_reached() == []
