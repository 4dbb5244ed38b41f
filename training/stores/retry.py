"""One policy for every call to every store: how often it is tried, how long is waited between, and when it
counts as hung.

Used by `trainfleet.training.stores.store`. Easy to get wrong: a client that hangs cannot be interrupted, so
each call runs in a thread
that is left behind when nothing has moved for `stall_s`; whatever it does later must then not matter to
anyone.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")
LOOK_EVERY_S = 0.25


class StalledError(Exception):
    """Raised when a call has moved nothing for longer than the policy allows."""


@dataclass(frozen=True)
class Patience:
    """The policy.

    Attributes:
        attempts: tries of each call; 1 means never again.
        first_s, longest_s: the wait before the second try, doubled each time up to the longest, each with up
        to half of it at random.
        stall_s: a call that has not moved a byte for so long has failed.
    """

    attempts: int = 6
    first_s: float = 0.5
    longest_s: float = 30.0
    stall_s: float = 60.0

    def wait(self, attempt: int) -> float:
        """Seconds before the try after `attempt` (from 1); at random, so that ranks do not all come back at
        once.
        """
        longest: float = min(self.longest_s, self.first_s * 2.0 ** (attempt - 1))
        return longest * (0.5 + random.Random().random() / 2)  # the run's own generator must not notice

    def run(
        self,
        call: Callable[[Callable[[], None]], Result],
        again: Callable[[BaseException], bool],
        tell: Callable[[BaseException, float, int], None],
    ) -> Result:
        """Call until it succeeds, `again(error)` says that trying is useless, or the tries are used up; then
        its error is raised.

        Args:
            call: is given a function to call whenever something moved.
            tell: is called with the error, the seconds until the next try, and its number.
        """
        for attempt in range(1, self.attempts + 1):
            try:
                return self._watched(call)
            except Exception as error:
                if attempt == self.attempts or not again(error):
                    raise
                pause = self.wait(attempt)
                tell(error, pause, attempt + 1)
                time.sleep(pause)
        raise AssertionError("at least one attempt")

    def _watched(self, call: Callable[[Callable[[], None]], Result]) -> Result:
        moved = time.monotonic()
        results: list[Result] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def note() -> None:
            nonlocal moved
            moved = time.monotonic()

        def work() -> None:
            try:
                results.append(call(note))
            except BaseException as error:  # noqa: BLE001 - handed to the caller below
                errors.append(error)
            done.set()

        threading.Thread(target=work, daemon=True, name="store-call").start()
        while not done.wait(min(LOOK_EVERY_S, self.stall_s)):
            if time.monotonic() - moved > self.stall_s:
                raise StalledError(f"nothing moved for {self.stall_s:g} s")
        if errors:
            raise errors[0]
        return results[0]
