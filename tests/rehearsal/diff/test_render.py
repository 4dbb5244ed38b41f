"""What a reviewer sees: the line on top, the verdict and its exit code, and each format's own rules."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from trainfleet.infra.catalog.cost import Bill, BillItem
from trainfleet.rehearsal.diff.change import Change, Property, Verb
from trainfleet.rehearsal.diff.data_loss import loss_of
from trainfleet.rehearsal.diff.html_page import as_html
from trainfleet.rehearsal.diff.model import SCHEMA_VERSION, Diff, Failing, SpecChange, Verdict
from trainfleet.rehearsal.diff.presentation import arrow, cost_notes, cost_rows, groups
from trainfleet.rehearsal.diff.render import MARKDOWN_LIMIT, as_markdown, as_text
from trainfleet.rehearsal.diff.worktrees import Revision

BASE, HEAD = (
    Revision("main", "a" * 40, "t1", "before"),
    Revision("HEAD", "b" * 40, "t2", "Rename <script>alert(1)</script>"),
)
NODE = BillItem("system", "m7i.2xlarge", 2, 4, 0.4, "us-east-1", date(2026, 7, 20))
BUCKET = "aws:s3/bucket:Bucket"


def change(verb: Verb, name: str = "prod-bucket", token: str = BUCKET, **more: Any) -> Change:
    loss = loss_of(token) if verb in (Verb.REPLACE, Verb.DELETE) else None
    return Change(verb, f"urn:pulumi:s::p::{token}::{name}", token, name, loss=loss, **more)


def diff(
    *changes: Change, before: Bill | None = Bill((NODE,)), after: Bill | None = Bill((NODE,)), **more: Any
) -> Diff:
    return Diff("aws-prod", BASE, HEAD, "there", changes, before, after, **more)


UPDATE = change(Verb.UPDATE, properties=(Property("tags.team", "ml", "vision"),))
QUIET = change(
    Verb.REPLACE,
    "prod-rule",
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
    forced_by=("securityGroupId",),
)


@pytest.mark.parametrize(
    ("found", "verdict", "code"),
    [
        (diff(), Verdict.NONE, 0),
        (diff(UPDATE), Verdict.CHANGE, 2),
        (diff(change(Verb.CREATE)), Verdict.CHANGE, 2),
        (diff(QUIET), Verdict.CHANGE, 2),
        (diff(newly_failing=(Failing("p", "r", "m", "mandatory"),)), Verdict.CHANGE, 2),
        (diff(change(Verb.REPLACE)), Verdict.DESTRUCTIVE, 3),
        (diff(change(Verb.DELETE)), Verdict.DESTRUCTIVE, 3),
        (diff(change(Verb.DELETE, kept=True)), Verdict.DESTRUCTIVE, 3),
    ],
)
def test_the_verdict_and_its_exit_code(found: Diff, verdict: Verdict, code: int) -> None:
    assert (found.verdict, found.exit_code) == (verdict, code)


def test_one_line_says_how_many_what_is_lost_what_it_costs_and_what_it_breaks() -> None:
    pool = BillItem("h100", "p5.48xlarge", 0, 2, 50.0)
    found = diff(
        UPDATE,
        change(Verb.REPLACE),
        after=Bill((replace(NODE, least=3), pool)),
        newly_failing=(Failing("p", "r", "m", "mandatory"),),
    )
    assert (
        found.blast_radius
        == "1 updated, 1 replaced (LOSES DATA: prod-bucket); +$292/month at min, +$73,000/month at max; 1"
        " policy newly fails"
    )


def test_what_is_kept_in_the_cloud_is_left_behind_and_not_lost() -> None:
    assert "1 deleted (LEAVES BEHIND: prod-bucket)" in diff(change(Verb.DELETE, kept=True)).blast_radius


def test_nothing_is_shown_as_nothing() -> None:
    assert diff().blast_radius == "nothing changes in the cloud; cost unchanged"


def test_a_price_that_is_not_known_is_named_and_not_zero() -> None:
    found = diff(after=Bill((NODE, BillItem("h200", "p5e.48xlarge", 0, 2, None))))
    assert "no price known for h200" in found.blast_radius
    row = next(row for row in cost_rows(found) if row.name == "h200")
    assert (row.after, row.month, row.price) == ("0–2 × unknown", "not known", "no price known")
    assert "+ unknown" in cost_rows(found)[-1].after
    for text in (as_text(found), as_markdown(found), as_html(found)):
        assert "No price is known for h200" in text


def test_a_price_without_a_date_is_called_an_estimate_in_every_format() -> None:
    found = diff(after=Bill((NODE, BillItem("nat", "NAT gateway", 1, 1, 0.045, "eastus"))))
    assert next(row.price for row in cost_rows(found) if row.name == "nat") == "estimate, undated, eastus"
    for text in (as_text(found), as_markdown(found), as_html(found)):
        assert "Estimated: nat." in " ".join(text.split())
    assert found.as_json()["cost"]["after"]["estimated"] == ["nat"]
    assert not [note for note in cost_notes(diff(after=Bill((NODE,)))) if note.startswith("Estimated")]


def test_without_an_hourly_price_the_notes_say_what_is_billed_by_use() -> None:
    found = Bill((), planned=True, by_usage=("files in EFS",), not_known=("acme:index:Thing",))
    notes = cost_notes(diff(before=found, after=found))
    assert [note.split(":")[0] for note in notes] == [
        "No cost is counted",
        "It is not known whether acme",
        "Billed by use, and not counted without an assumption (--usage)",
    ]


def test_the_share_of_the_budget_is_in_every_format() -> None:
    node = replace(NODE, usd_per_hour=1.0)  # 2 to 4 of them: 1,460 to 2,920 USD in 730 hours
    found = diff(after=Bill((node,), budget_usd_per_month=2000))
    note = "Of the budget of $2,000 a month: 73% always running, 146% with all pools at their largest."
    for text in (as_text(found), as_markdown(found), as_html(found)):
        assert note in " ".join(text.split())
    assert found.as_json()["cost"]["after"]["share_of_budget"] == {"min": 0.73, "max": 1.46}
    without = diff(after=Bill((node,)))
    assert not [note for note in cost_notes(without) if "budget" in note]
    assert without.as_json()["cost"]["after"]["share_of_budget"] == {"min": None, "max": None}


def test_a_cost_that_cannot_be_worked_out_is_reported() -> None:
    assert "cost not known" in diff(before=None, after=None).blast_radius


def test_changes_for_one_reason_are_one_entry() -> None:
    tagged = [
        replace(UPDATE, name=f"r{index}", token=token)
        for index, token in enumerate((BUCKET, "aws:ec2/vpc:Vpc", BUCKET))
    ]
    entries = groups(diff(*tagged), Verb.UPDATE)
    assert [(entry.type, entry.names) for entry in entries] == [("resources of 2 types", ["r0", "r1", "r2"])]


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("ml", "vision", "ml → vision"),
        (None, "vision", "+ vision"),
        ("ml", None, "− ml"),
        (["a", "b"], ["b", "c"], "− a, + c"),
        ("[secret]", "[secret]", "[secret] (changed)"),
        (
            "x" * 100 + "one" + "y" * 100,
            "x" * 100 + "two" + "y" * 100,
            f"…{'x' * 24}one{'y' * 24}… → …{'x' * 24}two{'y' * 24}…",
        ),
    ],
)
def test_a_property_is_shown_from_what_to_what(old: Any, new: Any, shown: str) -> None:
    assert arrow(Property("p", old, new)) == shown


def test_json_has_a_version_and_everything_in_it() -> None:
    spec = (SpecChange("network.cidr", "10.0.0.0/16", "10.1.0.0/16", "stacks/Pulumi.aws-prod.yaml:9"),)
    document = json.loads(json.dumps(diff(UPDATE, QUIET, spec=spec).as_json()))
    assert document["schema_version"] == SCHEMA_VERSION == 1
    assert (document["verdict"], document["exit_code"]) == ("change", 2)
    assert document["counts"] == {"create": 0, "update": 1, "replace": 1, "delete": 0, "unchanged": 0}
    assert document["changes"][1]["forced_by"] == ["securityGroupId"]
    assert document["cost"]["after"]["usd_per_month"] == {"min": 584.0, "max": 1168.0}
    assert document["spec"][0]["where"] == "stacks/Pulumi.aws-prod.yaml:9"


def test_markdown_fits_a_comment_and_says_what_it_leaves_out() -> None:
    many = [
        change(Verb.DELETE, f"bucket-{index}", properties=(), protected=index % 2 == 0) for index in range(50)
    ]
    long = [
        replace(UPDATE, name=f"r{index}", properties=(Property("note", f"{index}" * 90, f"{index}!" * 90),))
        for index in range(900)
    ]
    text = as_markdown(diff(*many, *long))
    assert len(text) <= MARKDOWN_LIMIT
    assert re.search(r"\d+ more rows do not fit into a comment", text)
    assert text.index("#### Deleted") < text.index("#### Updated")


def test_markdown_cells_do_not_break_the_table() -> None:
    text = as_markdown(diff(replace(UPDATE, properties=(Property("cmd", "a | b\nc", "`d`"),))))
    row = next(line for line in text.splitlines() if line.startswith("| ~"))
    assert re.sub(r"\\\|", "", row).count("|") == 4
    assert "``" in row


def test_html_is_one_file_without_script_and_what_is_shown_cannot_be_markup() -> None:
    text = as_html(
        diff(
            UPDATE,
            replace(QUIET, name="<img src=x>"),
            newly_failing=(Failing("p", "r", "<b>m</b>", "mandatory"),),
        )
    )
    assert "<script" not in text
    assert "<img" not in text
    assert "<b>m" not in text
    assert not re.search(r"<[^>]+\s(src|href)\s*=|url\(|@import|https?://", text)
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize("render", [as_text, as_markdown, as_html])
def test_every_format_shows_the_same(render: Any) -> None:
    spec = (SpecChange("network.cidr", "10.0.0.0/16", "10.1.0.0/16", "stacks/Pulumi.aws-prod.yaml:9"),)
    found = diff(
        UPDATE,
        change(Verb.REPLACE, forced_by=("bucket",)),
        spec=spec,
        notes=("a note",),
        newly_failing=(Failing("no-public", "b", "m", "x"),),
    )
    text = render(found)
    for word in (
        "destructive change",
        "prod-bucket",
        "LOSES DATA",
        "tags.team",
        "vision",
        "network.cidr",
        "no-public",
        "a note",
        "every object",
    ):
        assert word.lower() in text.lower(), word
