"""Fixtures of the tests of the bootstrap."""

from __future__ import annotations

import pytest

from trainfleet.rehearsal.engine.find import Engine, find_engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The Pulumi engine that every command would use here."""
    return find_engine()
