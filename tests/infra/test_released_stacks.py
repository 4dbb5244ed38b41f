"""The production stacks of release 0.1.0, which no real cloud could have applied, are rejected with the
reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from trainfleet.errors import InputError, Problem
from trainfleet.infra.spec.load import load_stack

PROJECT = Path(__file__).parent / "stacks_0_1_0"
STACKS = ("aws-prod", "gcp-prod", "azure-prod")
AFTER_SUPPORT = {"aws-prod": "2026-12-02", "azure-prod": "2026-12-01", "gcp-prod": "2027-01-01"}
"""The first day without standard support of 1.34, the version of these stacks."""


def rejected(stack: str, day: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Problem]:
    monkeypatch.setenv("TRAINFLEET_DATE", day)
    with pytest.raises(InputError) as caught:
        load_stack(stack, PROJECT, warn=lambda _: None)
    return {problem.where.rpartition(" ")[2]: problem for problem in caught.value.problems}


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_whose_api_server_nobody_reaches_is_rejected(
    stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = rejected(stack, "2026-11-22", monkeypatch)
    assert set(problems) == {"kubernetes.access.private_ranges"}
    (problem,) = problems.values()
    assert "nobody could reach the API server" in problem.what
    assert "no machine that could install the cluster layer is in it" in problem.what
    assert "network.hub" in problem.fix


@pytest.mark.parametrize(("stack", "day"), AFTER_SUPPORT.items())
def test_a_stack_whose_version_is_out_of_support_is_rejected(
    stack: str, day: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = rejected(stack, day, monkeypatch)["kubernetes.version"]
    assert "standard support of Kubernetes 1.34 ended" in problem.what
    assert "1.35" in problem.fix
