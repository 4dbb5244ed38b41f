"""Errors of the login command in a kubeconfig, which the Kubernetes client only logs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from trainfleet.errors import InputError, Problem


@contextlib.contextmanager
def login_errors(name: str) -> Iterator[None]:
    """Raise what a login command reports: the client only logs it, and then calls without a login.

    Raises:
        InputError: the command failed, or is missing.
    """
    messages: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
    if messages:
        lines = [" ".join(line.split()) for line in messages[-1].splitlines() if line.strip()]
        what = f"its login grants no token: {lines[-1] if lines else 'it printed nothing'}"
        raise InputError("cannot log in to the cluster", [Problem(name, what, "log in to the cloud again")])
