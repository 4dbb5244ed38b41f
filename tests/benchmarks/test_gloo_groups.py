"""The connections of a run's gloo groups grow as docs/scale.md says: counted on real ranks."""

from __future__ import annotations

import pytest

from benchmarks import gloo_groups

FEW, MANY = 4, 12


def test_the_ranks_of_a_run_connect_to_those_that_they_talk_to() -> None:
    """The connections of each rank but the first grow with the logarithm of the ranks. The variable that makes
    gloo do so is the one that a run sets.
    """
    few, many = gloo_groups.count(FEW, lazy=True), gloo_groups.count(MANY, lazy=True)
    for size, row in ((FEW, few), (MANY, many)):
        limits = gloo_groups.expected(size, lazy=True)
        assert row["others"]["most"] <= limits["others"], size
        assert row["rank 0"] <= limits["rank 0"], size
    assert many["others"]["most"] <= few["others"]["most"] + 8  # at once: 24 more


@pytest.mark.parametrize("size", [1024])
def test_the_formula_is_far_below_one_connection_for_each_pair(size: int) -> None:
    lazy, eager = (gloo_groups.expected(size, each) for each in (True, False))
    assert eager["others"] > 3_000 > 50 > lazy["others"]
    assert lazy["rank 0"] < eager["rank 0"]
