"""How long a managed job takes to recover after its pods are lost: until it was noticed, until new pods had
nodes, until the loop ran, until its next step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trainfleet.training.launch.sky.pods import live_pods

PARTS = ("noticed", "placed", "set_up", "resumed")
"""The phases of a recovery, in order."""


@dataclass(frozen=True)
class Pod:
    """A pod of a run, as its cluster reports it."""

    uid: str
    context: str
    placed: bool
    """Whether it has a node."""


@dataclass
class RecoveryWatcher:
    """Watches the pods and events of one run.

    Args:
        nodes: pods of the run.
        list_pods: the pods that are not being deleted; None if no cluster answers.
        noticed: whether SkyPilot knows that pods are lost.
        report: called with each completed recovery.
    """

    nodes: int
    list_pods: Callable[[], list[Pod] | None]
    noticed: Callable[[], bool]
    report: Callable[[dict[str, Any]], Any]
    clock: Callable[[], float] = time.time
    current: frozenset[Pod] = frozenset()
    """The pods of the run, once all of them have nodes."""
    new: frozenset[Pod] = frozenset()
    """Those that replace them, once all of them have nodes."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """One thread lists pods, another receives events."""
    times: dict[str, float] = field(default_factory=dict)
    """When the pods were lost, and when each phase of the present recovery ended."""

    @property
    def settled(self) -> bool:
        """Whether the run has ever had all of its pods."""
        return bool(self.current)

    def poll(self) -> None:
        """List the pods once."""
        found = self.list_pods() or []
        with self.lock:
            self._update(found, self.clock())

    def _update(self, found: list[Pod], now: float) -> None:
        here = {each.uid for each in found}
        if not self.current:
            self.current = self._complete(found)
        elif not self.times:
            if not _uids(self.current) <= here:
                self.times["lost"] = now
        else:
            if not _uids(self.new) <= here:  # the new pods are lost too
                self.new = frozenset()
                self.times = {part: at for part, at in self.times.items() if part in ("lost", "noticed")}
            fresh = [each for each in found if each.uid not in _uids(self.current)]
            if "noticed" not in self.times and (fresh or self.noticed()):
                self.times["noticed"] = now
            if not self.new and (new := self._complete(fresh)):
                self.new = new
                self.times["placed"] = now

    def on_event(self, kind: str) -> None:
        """Handle an event of the run.

        Events from before the loss may arrive after it, so they count only once there are new pods.
        """
        with self.lock:
            if "placed" not in self.times:
                return
            self.times.setdefault("set_up", self.clock())
            if kind == "step":
                self.times["resumed"] = self.clock()
                self.report(summary(self.times, _context(self.current), _context(self.new)))
                self.current, self.new, self.times = self.new, frozenset(), {}

    def _complete(self, pods: list[Pod]) -> frozenset[Pod]:
        """All pods of the run on one cluster; none while some of them have no node."""
        by_context: dict[str, list[Pod]] = {}
        for each in pods:
            if each.placed:
                by_context.setdefault(each.context, []).append(each)
        return next(
            (frozenset(those) for those in by_context.values() if len(those) == self.nodes), frozenset()
        )


def summary(times: Mapping[str, float], old: str, new: str) -> dict[str, Any]:
    """A completed recovery: from where to where, and the seconds of each phase."""
    marks = [times["lost"], *(times[part] for part in PARTS)]
    at = datetime.fromtimestamp(marks[-1], UTC).isoformat(timespec="seconds")
    seconds = {
        part: round(until - since, 1) for part, since, until in zip(PARTS, marks, marks[1:], strict=False)
    }
    return {"at": at, "from": old, "to": new, "seconds": seconds, "whole": round(marks[-1] - marks[0], 1)}


def describe(recovery: Mapping[str, Any]) -> str:
    """A recovery in one line."""
    seconds = recovery["seconds"]
    where = (
        f"recovered on {recovery['to']}"
        if recovery["from"] == recovery["to"]
        else f"moved from {recovery['from']} to {recovery['to']}"
    )
    pods = f"{seconds['noticed']:.0f} s until noticed, {seconds['placed']:.0f} for new pods"
    loop = f"{seconds['set_up']:.0f} to set up, {seconds['resumed']:.0f} to the next step"
    return f"{where} in {recovery['whole']:.0f} s: {pods}, {loop}"


def list_pods(contexts: Mapping[str, str], selector: str) -> list[Pod] | None:
    """The selected pods that are not being deleted; None if no cluster answers."""
    pods = live_pods(contexts, selector)
    if pods is None:
        return None
    return [
        Pod(str(each["metadata"]["uid"]), context, bool(each["spec"].get("nodeName")))
        for context, each in pods
    ]


def _uids(pods: frozenset[Pod]) -> set[str]:
    return {each.uid for each in pods}


def _context(pods: frozenset[Pod]) -> str:
    return next(iter(pods)).context if pods else ""
