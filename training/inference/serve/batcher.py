"""Dynamic batching: joins rows of several requests up to a maximum number and waiting time.

It counts rows, not requests, so a batch never exceeds what the model is configured for. Rows of cancelled
requests are not computed. An error affects only the rows of its batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Waiting:
    """A row that waits, since when, and who waits for its answer."""

    row: Any
    key: Any
    since: float
    future: asyncio.Future[Any]


class Batcher:
    """Batches rows.

    Args:
        compute: maps rows to the same number of answers; called in a thread, one batch at a time.
        most: maximum rows per batch.
        wait_s: seconds that a partial batch waits for more rows.
        key: rows with an equal key may share a batch.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Any]], Sequence[Any]],
        most: int,
        wait_s: float,
        key: Callable[[Any], Any] = lambda _: None,
    ) -> None:
        self._compute, self._most, self._wait_s, self._key = compute, most, wait_s, key
        self._queue: deque[_Waiting] = deque()
        self._full: asyncio.Event | None = None
        self._runner: asyncio.Task[None] | None = None

    async def __call__(self, rows: Sequence[Any]) -> list[Any]:
        """The answers to these rows. Cancelling it drops the rows that still wait."""
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in rows]
        now = loop.time()
        self._queue.extend(
            _Waiting(row, self._key(row), now, future) for row, future in zip(rows, futures, strict=True)
        )
        if self._runner is None or self._runner.done():
            self._full = asyncio.Event()
            self._runner = loop.create_task(self._run())
        if self._full is not None and len(self._queue) >= self._most:
            self._full.set()
        return list(await asyncio.gather(*futures))

    async def _run(self) -> None:
        while self._queue:
            assert self._full is not None
            left_s = self._queue[0].since + self._wait_s - asyncio.get_running_loop().time()
            if len(self._queue) < self._most and left_s > 0:
                self._full.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._full.wait(), left_s)
            if part := self._next():
                await self._answer(part)

    def _next(self) -> list[_Waiting]:
        """The oldest row and those that may be computed with it; others keep their places."""
        part: list[_Waiting] = []
        others: deque[_Waiting] = deque()
        while self._queue and len(part) < self._most:
            each = self._queue.popleft()
            if each.future.done():
                continue
            (part if not part or each.key == part[0].key else others).append(each)
        self._queue.extendleft(reversed(others))
        return part

    async def _answer(self, part: list[_Waiting]) -> None:
        try:
            answers = await asyncio.to_thread(self._compute, [each.row for each in part])
        except Exception as error:  # noqa: BLE001 - forwarded to each request
            for each in part:
                if not each.future.done():
                    each.future.set_exception(error)
            return
        for each, answer in zip(part, answers, strict=True):
            if not each.future.done():
                each.future.set_result(answer)
