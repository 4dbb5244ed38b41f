"""Several writes at a time, in daemon threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

Result = TypeVar("Result")


def in_threads(call: Callable[[str], Result], names: Iterable[str], most: int) -> dict[str, Result]:
    """Call `call(name)` for each name in up to `most` daemon threads; returns the results in that order.

    A process that exits does not wait for them, as it would for a ThreadPoolExecutor's. After an error, which
    is raised here, no further call begins.
    """
    names = list(names)
    waiting = deque(names)
    results: dict[str, Result] = {}
    errors: list[BaseException] = []

    def work() -> None:
        while not errors:
            try:
                name = waiting.popleft()
            except IndexError:
                return
            try:
                results[name] = call(name)
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread below
                errors.append(error)

    threads = [
        threading.Thread(target=work, daemon=True, name="checkpoint-file")
        for _ in range(min(most, len(names)))
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if errors:
        raise errors[0]
    return {name: results[name] for name in names}
