"""Removes what the targets keep, before the check for leaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.folders import remove_folders


@pytest.fixture(scope="session", autouse=True)
def _folders() -> Iterator[None]:
    yield
    remove_folders()
