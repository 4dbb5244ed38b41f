"""Which of a sampled test's cases `make test` runs: as many as it says, always the same for a seed, and the
others are deep.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest_plugins = ("pytester",)
CASES = """
import pytest

@pytest.mark.sampled({count})
@pytest.mark.parametrize("case", range(20))
def test_drawn(case): ...

@pytest.mark.deep
@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", range(3))
def test_long(case): ...

def test_always(): ...
"""


def drawn(
    folder: Path, run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, count: str, seed: str
) -> list[str]:
    (folder / "test_cases.py").write_text(CASES.format(count=count))
    (folder / "conftest.py").write_text("from tests.conftest import pytest_collection_modifyitems\n")
    monkeypatch.setenv("TRAINFLEET_TEST_SEED", seed)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = run.runpytest_subprocess("--collect-only", "-q", "-m", "not deep", "-p", "no:cacheprovider")
    return [line for line in done.outlines if "::" in line]


@pytest.mark.parametrize(("count", "expected"), [("4", 4), ("0.1", 2), ("50", 20)])
def test_as_many_cases_are_drawn_as_a_test_says(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, count: str, expected: int
) -> None:
    found = drawn(pytester.path, pytester, monkeypatch, count, "0")
    assert len([name for name in found if "test_drawn" in name]) == expected
    assert [name for name in found if "test_drawn" not in name] == ["test_cases.py::test_always"]


def test_a_seed_draws_the_same_again_and_another_others(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again, other = (drawn(pytester.path, pytester, monkeypatch, "4", seed) for seed in ("1", "1", "2"))
    assert first == again != other
