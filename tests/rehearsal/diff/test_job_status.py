"""A Job that has ended loses no work; of one without a status, the diff says what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.rehearsal.diff import compare
from trainfleet.rehearsal.diff.change import Change, Verb

TOKEN = "kubernetes:batch/v1:Job"


def deleted(status: dict[str, Any] | None, token: str = TOKEN, **how: bool) -> Change:
    """The deletion of a Job with this status in its state."""
    state = {
        "urn": f"urn:pulumi:one::tiny::{token}::train",
        "type": token,
        "custom": True,
        "inputs": {},
        "outputs": {} if status is None else {"status": status},
    }
    event = {"op": "delete", "urn": state["urn"], "type": token, "old": state, "new": None}
    ((change,), _) = compare.changes([event], [state], **how)
    assert change.verb is Verb.DELETE
    return change


def ended(kind: str = "Complete", status: str = "True") -> dict[str, Any]:
    conditions = [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": kind, "status": status}]
    return {"conditions": conditions, "completionTime": "2026-11-01T10:00:00Z"}


@pytest.mark.parametrize("how", [{"real_ids": True}, {"real_preview": True}], ids=["export", "recording"])
@pytest.mark.parametrize("kind", ["Complete", "Failed"])
def test_a_job_that_has_ended_loses_nothing(kind: str, how: dict[str, bool]) -> None:
    change = deleted(ended(kind), **how)
    assert not change.destructive
    assert change.loss is not None
    assert f"({kind}, 2026-11-01T10:00:00Z)" in change.loss.why


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"active": 2}, "the job is running (2 active pods) at its last refresh"),
        (ended(status="False"), "the job has not ended at its last refresh"),
        ({}, "the job has not ended"),
        (None, "its status is not known here"),
    ],
    ids=["active", "not complete", "no condition", "no status"],
)
def test_a_job_that_may_run_loses_work(status: dict[str, Any] | None, why: str) -> None:
    change = deleted(status, real_ids=True)
    assert change.destructive
    assert change.loss is not None
    assert change.loss.kinds == ("work",)
    assert why in change.loss.why


def test_the_status_of_a_simulated_job_is_not_used() -> None:
    change = deleted(ended())
    assert change.destructive
    assert change.loss is not None
    assert "unless it has ended" in change.loss.why


def test_other_kinds_of_the_group_are_not_affected() -> None:
    change = deleted(ended(), "kubernetes:batch/v1:CronJob", real_ids=True)
    assert change.destructive
