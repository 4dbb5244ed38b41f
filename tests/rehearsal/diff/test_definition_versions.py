"""An update of a definition that no longer serves a version loses access to its objects."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.rehearsal.diff import compare
from trainfleet.rehearsal.diff.change import Change
from trainfleet.rehearsal.diff.presentation import Group

TOKEN = "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition"


def updated(before: dict[str, bool], after: dict[str, bool], token: str = TOKEN) -> Change:
    """The update of a definition with these versions, each served or not."""

    def side(versions: dict[str, bool]) -> dict[str, Any]:
        listed = [{"name": name, "served": served} for name, served in versions.items()]
        return {"inputs": {"spec": {"versions": listed}}}

    urn = f"urn:pulumi:one::tiny::{token}::queues"
    event = {"op": "update", "urn": urn, "type": token, "old": side(before), "new": side(after)}
    ((change,), _) = compare.changes([event | {"diffs": ["spec"]}], [])
    return change


@pytest.mark.parametrize(
    "after", [{"v1": True}, {"v1": True, "v1beta1": False}], ids=["removed", "not served"]
)
def test_a_version_that_is_gone_is_a_loss(after: dict[str, bool]) -> None:
    change = updated({"v1": True, "v1beta1": True}, after)
    assert change.destructive
    group = Group(change.type, (change,))
    assert group.mark == "LOSES ACCESS"
    assert "read or written as v1beta1" in group.fate


@pytest.mark.parametrize(
    ("before", "after"),
    [({"v1": True}, {"v1": True, "v2": True}), ({"v1": True, "old": False}, {"v1": True})],
    ids=["a new version", "one that was not served"],
)
def test_every_other_update_of_a_definition_loses_nothing(
    before: dict[str, bool], after: dict[str, bool]
) -> None:
    assert not updated(before, after).destructive
