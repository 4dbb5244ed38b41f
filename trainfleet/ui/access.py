"""Who may read the console: the token of the printed address, then a cookie."""

from __future__ import annotations

import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

TOKEN_BYTES = 32
WRONG_PER_WINDOW = 20
"""Wrong tokens and cookies within WINDOW_S before no further one is compared."""
WINDOW_S = 60.0


@dataclass
class Access:
    """The secrets of one server, and how often wrong ones were sent.

    Attributes:
        token: of the printed address.
        session: the value of the cookie.
        opening: a token that works once, for the browser that the command opens: other users of the machine
            can read the arguments of processes.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    opening: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    clock: Callable[[], float] = time.monotonic
    _wrong: deque[float] = field(default_factory=deque)

    def knows_session(self, value: str) -> bool:
        """Whether a cookie is right. A right one is accepted however many wrong ones were sent."""
        if _same(value, self.session):
            return True
        if value:
            self._wrong.append(self.clock())
        return False

    def knows_token(self, value: str) -> bool:
        """Whether the token of an address is right; nothing is compared while too many were wrong."""
        if self.blocked:
            return False
        if self.opening and _same(value, self.opening):
            self.opening = ""
            return True
        if _same(value, self.token):
            return True
        self._wrong.append(self.clock())
        return False

    @property
    def blocked(self) -> bool:
        """Whether too many wrong tokens were sent within WINDOW_S."""
        while self._wrong and self.clock() - self._wrong[0] > WINDOW_S:
            self._wrong.popleft()
        while len(self._wrong) > WRONG_PER_WINDOW:
            self._wrong.popleft()
        return len(self._wrong) >= WRONG_PER_WINDOW


def _same(one: str, other: str) -> bool:
    """Compare in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())
