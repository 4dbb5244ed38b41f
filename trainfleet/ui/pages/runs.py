"""The list of runs: state, progress, a small curve, owner and cost; and what all of them have cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from trainfleet.training.cli.runs_cost import GROUPS, cost_document
from trainfleet.training.runs.listing import ACTIVE
from trainfleet.training.runtime.progress import duration
from trainfleet.ui.drawing import SPARK_HEIGHT, SPARK_WIDTH, spark
from trainfleet.ui.run_store import ListedRun, RunStore

LIST_WAIT_S = 0.5
"""How long a page waits for runs that were not read yet; it is shown without them afterwards."""
ALL = "all"
PROBLEMS = ("failed", "lost", "interrupted", "unknown")
SHOWN_STATES = (ALL, "active", "finished", "problems")


def contents(store: RunStore, state: str = ALL, text: str = "") -> dict[str, Any]:
    """The runs in a state whose name, owner or launcher contains a text."""
    runs = store.listed(LIST_WAIT_S)
    shown = [run for run in runs if _in_state(run, state) and _matches(run, text)]
    active = [run for run in runs if run.info.state in ACTIVE]
    usd = [run.info.usd for run in runs if run.info.usd is not None]
    return {
        "rows": [_row(run) for run in shown],
        "notes": store.notes(),
        "states": SHOWN_STATES,
        "state": state,
        "text": text,
        "places": [place.url for place in store.places],
        "spark": (SPARK_WIDTH, SPARK_HEIGHT),
        "tiles": [
            ("runs", f"{len(runs):,}", f"{len(shown):,} shown"),
            ("active", f"{len(active):,}", "running or starting"),
            ("problems", f"{sum(run.info.state in PROBLEMS for run in runs):,}", ", ".join(PROBLEMS[:3])),
            (
                "cost",
                f"${sum(usd):,.2f}" if usd else "unknown",
                f"of {len(usd):,} with a price",
            ),
        ],
    }


def cost(store: RunStore, by: str) -> dict[str, Any]:
    """What all runs have cost, by owner, launcher, platform, run or month."""
    document = cost_document([run.info for run in store.listed(LIST_WAIT_S)], by, None)
    return {"groups": GROUPS, "by": by, "cost": document, "notes": store.notes()}


def _row(run: ListedRun) -> dict[str, Any]:
    info = run.info
    age = info.age_s()
    share = info.step / info.steps if info.step is not None and info.steps else None
    return {
        "id": f"run-{run.key.place}-{run.key.folder}",
        "key": run.key,
        "name": info.name,
        "folder": run.key.folder,
        "readable": run.readable,
        "state": info.state,
        "step": info.step,
        "steps": info.steps,
        "share": None if share is None else round(100 * min(1.0, share), 1),
        "age": "" if age is None else duration(age),
        "since": info.since,
        "launcher": info.launcher,
        "owner": info.owner,
        "usd": info.usd,
        "message": info.message.splitlines()[-1] if info.message else "",
        "spark": spark(run.curve),
        "loss": run.curve[-1][1] if run.curve else None,
    }


def _in_state(run: ListedRun, state: str) -> bool:
    match state:
        case "active":
            return run.info.state in ACTIVE
        case "problems":
            return run.info.state in PROBLEMS
        case "all":
            return True
    return run.info.state == state


def _matches(run: ListedRun, text: str) -> bool:
    words: Sequence[str] = (run.info.name, run.key.folder, run.info.owner, run.info.launcher, run.info.state)
    return all(any(part in word.casefold() for word in words) for part in text.casefold().split())


def now() -> str:
    """The time at which a page was made."""
    return f"{datetime.now(UTC):%H:%M:%S} UTC"
