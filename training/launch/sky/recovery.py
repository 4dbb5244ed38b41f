"""How a managed job comes back when its pods are gone, in seconds: until it was noticed, until pods had a
place, until the loop ran, until its next step.

Used by `trainfleet.training.launch.sky.follow`, which looks at the pods every few seconds and hears what the
run says. Easy to get wrong: what a run
said before its pods were lost may arrive after that, so words count only once there are new pods.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trainfleet.training.launch.sky.pods import kubectl
from trainfleet.training.launch.sky.task import RUN_LABEL

ANSWER_S = 5.0
PARTS = ("noticed", "placed", "set_up", "resumed")
"""What the time of a move is split into, in order."""


@dataclass(frozen=True)
class Pod:
    """A pod of a run, as its cluster tells of it."""

    uid: str
    context: str
    placed: bool
    """Whether a node has it."""


@dataclass
class Moves:
    """Watches one run.

    Args:
        nodes: pods of the run.
        look: the pods that are there and not going; None where no cluster answers.
        noticed: whether SkyPilot knows that pods are gone.
        tell: hears of each move that is over.
    """

    nodes: int
    look: Callable[[], list[Pod] | None]
    noticed: Callable[[], bool]
    tell: Callable[[dict[str, Any]], Any]
    clock: Callable[[], float] = time.time
    home: frozenset[Pod] = frozenset()
    """The pods that the run was last seen on, all of them."""
    new: frozenset[Pod] = frozenset()
    """Those that it is moving to, once all of them have a place."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """One thread looks, another hears."""
    times: dict[str, float] = field(default_factory=dict)
    """When each part of the move that is going on ended, and when its pods were lost."""

    @property
    def settled(self) -> bool:
        """Whether the run has had all of its pods, at any time."""
        return bool(self.home)

    def tick(self) -> None:
        """Look once."""
        found = self.look() or []
        with self.lock:
            self._seen(found, self.clock())

    def _seen(self, found: list[Pod], now: float) -> None:
        here = {each.uid for each in found}
        if not self.home:
            self.home = self._all_in_one(found)
        elif not self.times:
            if not _uids(self.home) <= here:
                self.times["lost"] = now
        else:
            if not _uids(self.new) <= here:  # the new ones are gone too
                self.new = frozenset()
                self.times = {part: at for part, at in self.times.items() if part in ("lost", "noticed")}
            fresh = [each for each in found if each.uid not in _uids(self.home)]
            if "noticed" not in self.times and (fresh or self.noticed()):
                self.times["noticed"] = now
            if not self.new and (new := self._all_in_one(fresh)):
                self.new = new
                self.times["placed"] = now

    def heard(self, kind: str) -> None:
        """The run has said something of this kind."""
        with self.lock:
            if "placed" not in self.times:
                return
            self.times.setdefault("set_up", self.clock())
            if kind == "step":
                self.times["resumed"] = self.clock()
                self.tell(summary(self.times, _context(self.home), _context(self.new)))
                self.home, self.new, self.times = self.new, frozenset(), {}

    def _all_in_one(self, pods: list[Pod]) -> frozenset[Pod]:
        """The pods that a whole cluster of the run consists of; none while some of it have no node."""
        by_context: dict[str, list[Pod]] = {}
        for each in pods:
            if each.placed:
                by_context.setdefault(each.context, []).append(each)
        return next(
            (frozenset(those) for those in by_context.values() if len(those) == self.nodes), frozenset()
        )


def summary(times: Mapping[str, float], old: str, new: str) -> dict[str, Any]:
    """A move that is over: from where to where, and the seconds of each part."""
    marks = [times["lost"], *(times[part] for part in PARTS)]
    at = datetime.fromtimestamp(marks[-1], UTC).isoformat(timespec="seconds")
    seconds = {
        part: round(until - since, 1) for part, since, until in zip(PARTS, marks, marks[1:], strict=False)
    }
    return {"at": at, "from": old, "to": new, "seconds": seconds, "whole": round(marks[-1] - marks[0], 1)}


def words(move: Mapping[str, Any]) -> str:
    """A move in a line."""
    seconds = move["seconds"]
    where = (
        f"came back on {move['to']}"
        if move["from"] == move["to"]
        else f"moved from {move['from']} to {move['to']}"
    )
    parts = f"{seconds['noticed']:.0f} s until noticed, {seconds['placed']:.0f} for new pods, {seconds['set_up']:.0f} to set up"
    return f"{where} in {move['whole']:.0f} s: {parts}, {seconds['resumed']:.0f} to the next step"


def look(contexts: Mapping[str, str], run: str) -> list[Pod] | None:
    """The pods of a run that are there and not going; None when no cluster answers."""
    found: list[Pod] = []
    answers = 0
    for context, namespace in contexts.items():
        arguments = (
            "--namespace",
            namespace,
            "get",
            "pods",
            "--selector",
            f"{RUN_LABEL}={run}",
            "--output",
            "json",
        )
        done = kubectl(context, *arguments, timeout_s=ANSWER_S)
        if done.returncode != 0:
            continue
        answers += 1
        found += [_pod(context, each) for each in json.loads(done.stdout)["items"] if _stays(each)]
    return found if answers else None


def _stays(pod: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and pod.get("status", {}).get("phase") in (
        "Pending",
        "Running",
    )


def _pod(context: str, pod: Mapping[str, Any]) -> Pod:
    return Pod(str(pod["metadata"]["uid"]), context, bool(pod["spec"].get("nodeName")))


def _uids(pods: frozenset[Pod]) -> set[str]:
    return {each.uid for each in pods}


def _context(pods: frozenset[Pod]) -> str:
    return next(iter(pods)).context if pods else ""
