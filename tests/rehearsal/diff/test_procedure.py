"""What needs a step besides `pulumi up`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainfleet.rehearsal.diff.change import Change, Verb
from trainfleet.rehearsal.diff.data_loss import Loss
from trainfleet.rehearsal.diff.html_page import as_html
from trainfleet.rehearsal.diff.model import Diff
from trainfleet.rehearsal.diff.procedure import SHOWN, procedure
from trainfleet.rehearsal.diff.render import as_markdown, as_text
from trainfleet.rehearsal.diff.worktrees import Revision

EKS, POOL, NAMESPACE = (
    "aws:eks/cluster:Cluster",
    "aws:eks/nodeGroup:NodeGroup",
    "kubernetes:core/v1:Namespace",
)
BUCKET = "aws:s3/bucket:Bucket"
WORK = Loss(("work",), "its nodes are drained", loud=True)


def change(verb: Verb, token: str, name: str = "it", **more: Any) -> Change:
    return Change(verb, f"urn:pulumi:s::p::{token}::{name}", token, name, **more)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], []),
        ([change(Verb.CREATE, EKS)], []),
        ([change(Verb.UPDATE, BUCKET)], []),
        ([change(Verb.UPDATE, BUCKET, "b", may_replace=("bucket",))], [("before", "happens to b")]),
        ([change(Verb.REPLACE, BUCKET, "b", protected=True)], [("before", "pulumi state unprotect for b")]),
        ([change(Verb.UPDATE, BUCKET, "b", protected=True)], []),
        ([change(Verb.REPLACE, EKS, "eks")], []),
        (
            [change(Verb.REPLACE, EKS, "eks"), change(Verb.REPLACE, NAMESPACE, "ns")],
            [("instead", "pulumi destroy --target")],
        ),
        ([change(Verb.DELETE, EKS, "eks"), change(Verb.DELETE, NAMESPACE, "ns")], []),
        ([change(Verb.UPDATE, POOL, "pool", loss=WORK)], [("during", "the nodes of pool")]),
        ([change(Verb.UPDATE, POOL, "pool")], []),
        ([change(Verb.CREATE, POOL, "pool", loss=WORK)], []),
        ([change(Verb.DELETE, BUCKET, "b", kept=True)], [("after", "import or delete by hand: b")]),
    ],
)
def test_the_steps_of_a_change(changes: list[Change], expected: list[tuple[str, str]]) -> None:
    found = procedure(changes)
    assert [step.when for step in found] == [when for when, _ in expected]
    assert all(text in step.what for step, (_, text) in zip(found, expected, strict=True))


def test_many_names_are_counted() -> None:
    names = [f"b{number}" for number in range(SHOWN + 3)]
    (step,) = procedure([change(Verb.DELETE, BUCKET, name, protected=True) for name in names])
    assert step.what.endswith("and 3 more")


def test_every_format_has_the_procedure() -> None:
    side = Revision("r", "abc", "t")
    changes = (change(Verb.REPLACE, BUCKET, "b", protected=True),)
    found = Diff("one", side, side, "there", changes, None, None)
    for text in (as_text(found), as_markdown(found), as_html(found), json.dumps(found.as_json())):
        assert "pulumi state unprotect for b" in " ".join(text.split())
