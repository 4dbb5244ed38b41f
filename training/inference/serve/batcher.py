"""Dynamic batching: rows of many requests go through the model together, at most so many, after waiting at
most so long.

Used by `trainfleet.training.inference.serve.request_handler`. Counts rows, not requests, so that a batch
never holds more than the model is meant to take. Easy to get
wrong: a row whose request has given up must not be computed any more, and an error is every waiting row's of
that batch, no other's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any


class Batcher:
    """Puts rows together.

    Args:
        compute: rows to as many answers; called in a thread, one batch at a time.
        most: rows of a batch.
        wait_s: how long a batch that is not full waits for more.
    """

    def __init__(self, compute: Callable[[Sequence[Any]], Sequence[Any]], most: int, wait_s: float) -> None:
        self._compute, self._most, self._wait_s = compute, most, wait_s
        self._queue: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._full: asyncio.Event | None = None
        self._runner: asyncio.Task[None] | None = None

    async def __call__(self, rows: Sequence[Any]) -> list[Any]:
        """The answers to these rows; when this is cancelled, those of them that wait are forgotten."""
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
        except Exception as error:  # noqa: BLE001 - it is told to each request, which knows what to do with it
            for _, future in part:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(part, answers, strict=True):
            if not future.done():
                future.set_result(answer)
