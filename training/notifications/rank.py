"""What rank 0 reports of the run: its start, preemption notices, limits, and its end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainfleet.training.notifications.sender import Notifier
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime.events import EVENTS, EventSink, notified_launch
from trainfleet.training.runtime.progress import Lines


class RankNotices:
    """Turns the events of rank 0 into messages. Returns at once, except `ended`."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._started = False
        self._resumed = ""

    @property
    def dropped(self) -> int:
        """Messages that could not be sent."""
        return self._notifier.dropped

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Take note of an event that rank 0 sends to its launcher."""
        name, workers = self._notifier.recipe.name, self._notifier.recipe.scaling.workers
        match event["kind"]:
            case "step" if not self._started:
                self._started = True
                step, total = event["step"], event["total"]
                text = f"{name} trains: step {step} of {total} on {workers} worker(s){self._resumed}"
                self._notifier.send("start", text, {"step": step, "steps": total, "workers": workers})
            case "event":
                self._on_notice(event["what"], event["text"])

    def ended(self, result: Mapping[str, Any]) -> None:
        """Report the end, and wait until everything is sent, for a limited time."""
        status, step = result["status"], result["step"]
        why = "; ".join(result.get("limits", []))
        text = f"{self._notifier.recipe.name} {status} at step {step}" + (f": {why}" if why else "")
        metrics = {name: round(value, 6) for name, value in result["metrics"].items()}
        self._notifier.send("end", text, {"status": status, "step": step, **metrics})
        self._notifier.close()

    def _on_notice(self, what: str, text: str) -> None:
        name = self._notifier.recipe.name
        match what:
            case "resumed":
                self._resumed = f", resumed {text}"
            case "preemption":
                self._notifier.send("preemption", f"{name}: {text}", {}, key=text)
            case "budget":
                self._notifier.send("budget", f"{name}: {text}", {}, key=text, whole_run=True)


class ReportingSink(EventSink):
    """Sends rank 0's events to the launcher, and what they say to the run's people."""

    def __init__(self, recipe: Recipe, run_dir: Path, env: Mapping[str, str]) -> None:
        super().__init__(env.get(EVENTS))
        self._notices = RankNotices(
            Notifier(recipe, run_dir, notified_launch(env), os.environ, self._on_dropped)
        )

    def send(self, kind: str, **fields: Any) -> None:
        if kind == "result":
            self._notices.ended(fields)  # first: after a result, this process may be ended
        super().send(kind, **fields)
        self._notices.on_event({"kind": kind, **fields})

    def counts(self) -> dict[str, int]:
        dropped = self._notices.dropped
        return {"dropped_notifications": dropped} if dropped else {}

    def _on_dropped(self, text: str) -> None:
        super().send("event", what="warning", text=text)
        if not self.has_listener:
            Lines().handle({"kind": "event", "what": "warning", "text": text})
