"""A folder of small texts, one per file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Three hundred files of one to ninety bytes."""
    folder = tmp_path / "texts"
    rng = random.Random(3)
    for number in range(300):
        (folder / f"{number % 7}").mkdir(parents=True, exist_ok=True)
        (folder / f"{number % 7}" / f"{number:03}.txt").write_bytes(
            bytes(rng.randrange(97, 123) for _ in range(rng.randrange(1, 90)))
        )
    return folder
