"""Dynamic batching: joins rows of several requests up to a maximum number and waiting time.

It counts rows, not requests, so a batch never exceeds what the model is configured for. Rows of cancelled
requests are not computed. An error affects only the rows of its batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any


class Batcher:
    """Batches rows.

    Args:
        compute: maps rows to the same number of answers; called in a thread, one batch at a time.
        most: maximum rows per batch.
        wait_s: seconds that a partial batch waits for more rows.
    """

    def __init__(self, compute: Callable[[Sequence[Any]], Sequence[Any]], most: int, wait_s: float) -> None:
        self._compute, self._most, self._wait_s = compute, most, wait_s
        self._queue: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._full: asyncio.Event | None = None
        self._runner: asyncio.Task[None] | None = None

    async def __call__(self, rows: Sequence[Any]) -> list[Any]:
        """The answers to these rows. Cancelling it drops the rows that still wait."""
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in rows]
        self._queue.extend(zip(rows, futures, strict=True))
        if self._runner is None or self._runner.done():
            self._full = asyncio.Event()
            self._runner = loop.create_task(self._run())
        if self._full is not None and len(self._queue) >= self._most:
            self._full.set()
        return list(await asyncio.gather(*futures))

    async def _run(self) -> None:
        while self._queue:
            assert self._full is not None
            if len(self._queue) < self._most and self._wait_s:
                self._full.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._full.wait(), self._wait_s)
            part: list[tuple[Any, asyncio.Future[Any]]] = []
            while self._queue and len(part) < self._most:
                row, future = self._queue.popleft()
                if not future.done():
                    part.append((row, future))
            if part:
                await self._answer(part)

    async def _answer(self, part: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        try:
            answers = await asyncio.to_thread(self._compute, [row for row, _ in part])
        except Exception as error:  # noqa: BLE001 - forwarded to each request
            for _, future in part:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(part, answers, strict=True):
            if not future.done():
                future.set_result(answer)
