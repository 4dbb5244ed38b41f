"""The retry policy of store requests: attempts, waits between them, and when a request counts as stalled."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")
POLL_INTERVAL_S = 0.25


class StalledError(Exception):
    """Raised when a request makes no progress for longer than the policy allows."""


@dataclass(frozen=True)
class RetryPolicy:
    """Retries with exponential backoff.

    Attributes:
        attempts: attempts per request; 1 means no retry.
        first_s: seconds before the second attempt; doubled for each further one. Up to half of it is
            random.
        longest_s: maximum seconds between two attempts.
        stall_s: seconds without progress after which a request fails.
        budget_s: seconds for which a request is tried again although its attempts are used up.
    """

    attempts: int = 6
    first_s: float = 0.5
    longest_s: float = 30.0
    stall_s: float = 60.0
    budget_s: float = 0.0

    def wait(self, attempt: int) -> float:
        """Seconds to wait after `attempt` (from 1), randomised so that ranks do not retry together."""
        longest: float = min(self.longest_s, self.first_s * 2.0 ** min(attempt - 1, 64))
        return longest * (0.5 + random.Random().random() / 2)  # leaves the run's own generator untouched

    def run(
        self,
        call: Callable[[Callable[[], None]], Result],
        is_retryable: Callable[[BaseException], bool],
        on_retry: Callable[[BaseException, float, int], None],
    ) -> Result:
        """Call until it succeeds. Raises its error if that is not retryable, or after the last attempt and
        the budget.

        Args:
            call: the request; receives a function to call on progress.
            is_retryable: whether another attempt may help.
            on_retry: called with the error, the seconds until the next attempt, and its number.
        """
        began = time.monotonic()
        for attempt in itertools.count(1):
            try:
                return self._watched(call)
            except Exception as error:
                used_up = attempt >= self.attempts and time.monotonic() - began >= self.budget_s
                if used_up or not is_retryable(error):
                    raise
                pause = self.wait(attempt)
                on_retry(error, pause, attempt + 1)
                time.sleep(pause)
        raise AssertionError("at least one attempt")

    # NOTE: a hanging client cannot be interrupted; its thread is abandoned, so its later effects must not
    # matter.
    def _watched(self, call: Callable[[Callable[[], None]], Result]) -> Result:
        moved = time.monotonic()
        results: list[Result] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def on_progress() -> None:
            nonlocal moved
            moved = time.monotonic()

        def work() -> None:
            try:
                results.append(call(on_progress))
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread below
                errors.append(error)
            done.set()

        threading.Thread(target=work, daemon=True, name="store-call").start()
        while not done.wait(min(POLL_INTERVAL_S, self.stall_s)):
            if time.monotonic() - moved > self.stall_s:
                raise StalledError(f"no progress for {self.stall_s:g} s")
        if errors:
            raise errors[0]
        return results[0]
