"""What every test of the components needs."""

from __future__ import annotations

import asyncio

import pytest


@pytest.fixture(autouse=True)
def event_loop() -> None:
    """An event loop of this thread, which Pulumi's outputs need. `asyncio.run` in an earlier test removes it."""
    try:
        asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:
        asyncio.set_event_loop(asyncio.new_event_loop())
