"""How large a light install is, and how long it takes."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from tools.release import build, environments

EPOCH = 1_790_000_000
SECONDS = 30.0
"""The most that a light install takes once its packages are downloaded."""


@pytest.fixture(scope="module")
def distributions(root: Path, tmp_path_factory: pytest.TempPathFactory) -> build.Distributions:
    return build.build(root, tmp_path_factory.mktemp("built"), EPOCH)


def documented(root: Path, name: str) -> int:
    """The bytes of a light install as the pages state them."""
    row = tomllib.loads((root / "docs" / "figures.toml").read_text())[f"light_install_{name}"]
    return int(row["text"].removesuffix(" MB")) * 1_000_000


@pytest.mark.deep
@pytest.mark.parametrize("extra", [*environments.CLOUDS, "review"])
def test_a_light_install_has_the_size_that_the_pages_state(
    root: Path, distributions: build.Distributions, extra: str, tmp_path: Path
) -> None:
    """And takes seconds once its packages are downloaded."""
    for name in ("first", "second"):
        where = tmp_path / name
        where.mkdir()
        made = environments.Environment(root, Path(sys.executable), where, extra)
        seconds = made.install(f"trainfleet[{extra}] @ {distributions.wheel.as_uri()}")
        assert made.problems == []
    assert seconds < SECONDS
    assert environments.size(made.venv) == pytest.approx(documented(root, extra), rel=0.05)
    assert (documented(root, extra) < environments.MOST_BYTES) == (extra in environments.CLOUDS)
