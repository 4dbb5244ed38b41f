"""Finds the rank for which the others wait, names it, and ends the processes: the launcher restarts them.

A rank that is stopped, or whose machine is gone without closing its connections, leaves the others in a
collective, which would wait for the time-out of the process group. A thread of each rank therefore tells the
others through a store that its process runs, and in which step it is. They read it only when a step is late.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainfleet.training.runtime.process_group import World
from trainfleet.training.trainer.context import RunContext

INTERVAL_S = 5.0
SILENT_INTERVALS = 3
"""Intervals without a sign of life after which a process does not respond."""
SLOW = 10
"""A step is late only if it takes this many times as long as the longest one before."""
STUCK = 5
"""Times the limit after which a step is late in which all ranks respond: it may compile another shape."""


@dataclass(frozen=True)
class RankState:
    """What a rank says about itself.

    Attributes:
        beats: signs of life so far.
        step: steps done.
        lengthy: whether it does what may take long.
        place: the function that its loop is in.
        host, pid: its process.
    """

    beats: int
    step: int
    lengthy: bool
    place: str
    host: str
    pid: int


@dataclass(frozen=True)
class Suspect:
    """The rank that hangs, and a sentence about it. `silent`: host and process that give no sign of life."""

    rank: int
    text: str
    silent: tuple[str, int] | None = None


class HangWatch:
    """One rank's watch over all ranks. Ends this process if a rank hangs.

    Args:
        world: this process among all.
        limit_s: seconds after which a step is late.
        report: called on one rank with the number of the rank that hangs and a sentence.
        record: called on every rank that responds, before `end`: keeps what its collectives did.
        end: called on every rank that responds; must not return.
        interval_s: seconds between signs of life.
    """

    def __init__(
        self,
        world: World,
        limit_s: float,
        report: Callable[[int, str], Any],
        *,
        record: Callable[[], Any] = lambda: None,
        end: Callable[[int], Any] = os._exit,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.world, self.limit_s = world, limit_s
        self.report, self.record, self.end = report, record, end
        self.interval_s = min(interval_s, limit_s / 4)
        self._first: list[Any] = []
        self._store = self._open_store()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._beats = self._lengthy = self._thread = 0
        self._step, self._since, self._longest = 0, time.monotonic(), 0.0
        with contextlib.suppress(Exception):  # as in `_watch`
            self._beat()  # reading the state of a rank that never gave a sign of life would wait for it
        threading.Thread(target=self._watch, daemon=True, name="hang-watch").start()

    def attach(self, context: RunContext) -> None:
        """Watch the steps of a run. The time before the first one does not count."""
        on_step, self._thread = context.on_step, threading.get_ident()

        def stepped(step: int, total: int) -> None:
            with self._lock:
                now = time.monotonic()
                if self._step:
                    self._longest = max(self._longest, now - self._since)
                self._step, self._since = step, now
            on_step(step, total)

        context.on_step, context.lengthy = stepped, self.lengthy

    @contextlib.contextmanager
    def lengthy(self) -> Iterator[None]:
        """Context of what may take long on one rank, such as a wait for data: no rank is late meanwhile."""
        with self._lock:
            self._lengthy += 1
        try:
            yield
        finally:
            with self._lock:
                self._lengthy -= 1
                self._since = time.monotonic()

    def close(self) -> None:
        """End the watch."""
        self._ended.set()

    def _open_store(self) -> Any:
        """A store of its own on rank 0, because a request to one that is stopped blocks its other users."""
        address = os.environ.get("MASTER_ADDR", "127.0.0.1")
        store: Any = None
        if self.world.rank == 0:
            store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        place = [(store.port, platform.node(), os.getpid()) if store is not None else None]
        dist.broadcast_object_list(place, src=0)
        assert place[0] is not None
        port, *self._first = place[0]
        return store or dist.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]

    def _watch(self) -> None:
        while not self._ended.wait(self.interval_s):
            with contextlib.suppress(Exception):  # rank 0 is gone or stopped, as `_suspect` finds
                self._beat()
            if self._late():
                found = self._suspect()
                if found is not None and self._late() and not self._ended.is_set():
                    self._give_up(found)

    def _beat(self) -> None:
        with self._lock:
            self._beats += 1
            beats, step, lengthy = self._beats, self._step, self._lengthy > 0
        state = RankState(beats, step, lengthy, self._place(), platform.node(), os.getpid())
        self._store.set(str(self.world.rank), json.dumps(vars(state)))

    def _place(self) -> str:
        frame = sys._current_frames().get(self._thread)
        return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name})" if frame is not None else ""

    def _late(self, times: int = 1) -> bool:
        with self._lock:
            limit = times * max(self.limit_s, SLOW * self._longest)
            return self._step > 0 and not self._lengthy and time.monotonic() - self._since > limit

    def _read_states(self) -> list[RankState]:
        """What all ranks say. A client of torch's store waits without a limit for a server that is stopped.

        Raises:
            TimeoutError: the store, which is in rank 0, does not answer.
        """
        found: list[list[RankState]] = []
        reader = threading.Thread(target=lambda: found.append(self._states()), daemon=True)
        reader.start()
        reader.join(SILENT_INTERVALS * self.interval_s)
        if not found:
            raise TimeoutError
        return found[0]

    def _states(self) -> list[RankState]:
        names = [str(rank) for rank in range(self.world.world_size)]
        return [RankState(**json.loads(each)) for each in self._store.multi_get(names)]

    def _suspect(self) -> Suspect | None:
        """The rank that hangs; None if none does, or if one may take long.

        If all respond, it is unknown for which of them the others wait: the sentence says where each is.
        """
        try:
            before = self._read_states()
            for _ in range(SILENT_INTERVALS):
                self._ended.wait(self.interval_s)
                self._beat()
            after = self._read_states()
        except (TimeoutError, RuntimeError):  # torch's errors of a broken connection are of the latter
            return _silent(0, *self._first)
        for rank, (then, now) in enumerate(zip(before, after, strict=True)):
            if then.beats == now.beats and rank != self.world.rank:
                return _silent(rank, now.host, now.pid, f" since step {now.step + 1}")
        if any(each.lengthy for each in after) or not self._late(STUCK):
            return None
        places: dict[str, list[int]] = {}
        for rank, state in enumerate(after):
            places.setdefault(state.place, []).append(rank)
        fewest = sorted(places.items(), key=lambda each: len(each[1]))
        texts = [f"{_ranks(ranks)} in {place}" for place, ranks in fewest]
        step = min(each.step for each in after) + 1
        text = f"all ranks respond, but step {step} does not end: {'; '.join(texts)}"
        return Suspect(fewest[0][1][0], text)

    def _give_up(self, suspect: Suspect) -> None:
        """Report, kill a silent process of this machine, and end.

        NOTE: in this order: the connections of a killed process end the other ranks before they can report.
        """
        if self.world.rank == (1 if suspect.silent and suspect.rank == 0 else 0):
            self.report(suspect.rank, f"{suspect.text}; the step is late by more than {self.limit_s:g} s")
        else:
            self._ended.wait(self.interval_s)
        self.record()
        if suspect.silent and suspect.silent[0] == platform.node():
            with contextlib.suppress(OSError):  # launchers ask it to end first, and it would not
                os.kill(suspect.silent[1], signal.SIGKILL)
        self.end(1)


def _silent(rank: int, host: str, pid: int, since: str = "") -> Suspect:
    return Suspect(rank, f"rank {rank} (process {pid} on {host}) does not respond{since}", (host, pid))


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
