"""What a recorded refresh says of each resource: its severity, what the next up does, what is expected."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from tests.rehearsal.drift.recordings import (
    BUCKET,
    GROUP,
    NODES,
    RULE,
    SUBNET,
    Metadata,
    changed,
    planned,
    read,
    state,
    urn,
    write,
)
from trainfleet.rehearsal.accepted import AcceptedDrift
from trainfleet.rehearsal.diff import event_log
from trainfleet.rehearsal.drift.assess import assess
from trainfleet.rehearsal.drift.expected import covers, table, without_indexes
from trainfleet.rehearsal.drift.model import DriftReport, DriftReports, NextUp, NotChecked, Severity
from trainfleet.rehearsal.drift.render import MARKDOWN_LIMIT, as_markdown
from trainfleet.rehearsal.simulation.pulumi_values import SECRET, SIGNATURE
from trainfleet.rehearsal.simulation.schema import packages

RUNS = state(BUCKET, "runs", {"bucket": "tiny", "tags": {"team": "ml"}}, {"arn": "arn:aws:s3:::tiny"})
NET = state(SUBNET, "subnet", {"cidrBlock": "10.0.1.0/24", "vpcId": "vpc-1"})
WEB = state(GROUP, "web", {"ingress": [], "egress": []}, {"id": "web-1"})
POOL = state(NODES, "pool", {"scalingConfig": {"minSize": 0, "maxSize": 4, "desiredSize": 1}})


def ingress(*networks: str) -> list[dict[str, Any]]:
    return [{"protocol": "tcp", "fromPort": 22, "toPort": 22, "cidrBlocks": list(networks)}]


def report(folder: Path, *events: Metadata, **more: Any) -> DriftReport:
    return assess(event_log.read(write(folder, *events)), "a test", **more)


def test_an_unchanged_resource_has_not_drifted(tmp_path: Path) -> None:
    found = report(tmp_path, *read(RUNS, RUNS))
    assert (found.exit_code, found.resources, found.checked) == (0, (), 1)
    assert "No drift" in as_markdown(found)


CASES: list[tuple[str, Metadata, Metadata | None, Severity, NextUp]] = [
    ("a tag", RUNS, changed(RUNS, tags={"team": "ml", "by": "hand"}), Severity.LOW, NextUp.UPDATE),
    ("a bucket is gone", RUNS, None, Severity.HIGH, NextUp.CREATE),
    ("a network range", NET, changed(NET, cidrBlock="10.9.0.0/24"), Severity.HIGH, NextUp.REPLACE),
    ("a port is open", WEB, changed(WEB, ingress=ingress("0.0.0.0/0")), Severity.HIGH, NextUp.UPDATE),
    (
        "a pool is larger",
        POOL,
        changed(POOL, scalingConfig={"minSize": 0, "maxSize": 9, "desiredSize": 1}),
        Severity.MEDIUM,
        NextUp.UPDATE,
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "severity", "next_up"), CASES, ids=[c[0] for c in CASES])
def test_a_refresh_is_evaluated_by_the_rules_of_the_type(
    name: str, old: Metadata, new: Metadata | None, severity: Severity, next_up: NextUp, tmp_path: Path
) -> None:
    found = report(tmp_path, *read(old, new))
    (each,) = found.resources
    assert (each.severity, each.next_up, each.certain) == (severity, next_up, False)
    assert found.exit_code == 3
    assert each.repair


def test_what_the_program_plans_goes_before_the_rules(tmp_path: Path) -> None:
    cloud = changed(RUNS, tags={"by": "hand"})
    detail = {"tags": {"diffKind": "update", "inputDiff": True}}
    found = report(tmp_path, *read(RUNS, cloud), *planned("update", cloud, RUNS, detailedDiff=detail))
    (each,) = found.resources
    assert (each.next_up, each.certain, found.pending) == (NextUp.UPDATE, True, ())
    kept = report(tmp_path, *read(RUNS, cloud), *planned("same", cloud, cloud))
    assert kept.resources[0].next_up is NextUp.NOTHING
    assert "an up leaves it" in kept.resources[0].repair


def test_changes_of_the_program_are_not_drift(tmp_path: Path) -> None:
    new = changed(RUNS, tags={"team": "new"})
    detail = {"tags.team": {"diffKind": "update", "inputDiff": True}}
    found = report(tmp_path, *read(RUNS, RUNS), *planned("update", RUNS, new, detailedDiff=detail))
    assert (found.resources, found.pending, found.exit_code) == ((), ("update runs",), 0)


def test_a_name_that_the_provider_generated_is_not_restored(tmp_path: Path) -> None:
    old = state(BUCKET, "auto", {"bucket": "auto-1", "__defaults": ["bucket"]})
    (each,) = report(tmp_path, *read(old, changed(old, bucket="by-hand"))).resources
    assert each.next_up is NextUp.NOTHING


def test_a_protected_resource_is_not_replaced(tmp_path: Path) -> None:
    old = {**NET, "protect": True}
    (each,) = report(tmp_path, *read(old, changed(old, cidrBlock="10.9.0.0/24"))).resources
    assert each.next_up is NextUp.REPLACE
    assert "an up refuses to replace it" in each.repair


def test_what_depends_on_drift_is_not_a_change_of_the_program(tmp_path: Path) -> None:
    other = state(BUCKET, "other", {"tags": {}})
    exported = [RUNS, {**NET, "dependencies": [RUNS["urn"]]}, other]
    steps = [
        *planned("create", None, RUNS),
        *planned("replace", NET, changed(NET, vpcId="vpc-2")),
        *planned("update", other, changed(other, tags={"a": "b"})),
    ]
    found = report(tmp_path, *read(RUNS, None), *read(NET, NET), *read(other, other), *steps, state=exported)
    assert [each.name for each in found.resources] == ["runs"]
    assert found.follows == ("replace subnet (loses work, addresses)",)
    assert found.pending == ("update other",)


@pytest.mark.parametrize("masked", ["[secret]", {SIGNATURE: SECRET, "ciphertext": "[secret]"}])
def test_a_secret_that_changed_is_named_and_not_shown(masked: Any, tmp_path: Path) -> None:
    old = state("aws:ssm/parameter:Parameter", "key", {"value": masked})
    detail = {"value": {"diffKind": "update", "inputDiff": True}}
    new = {**old, "outputs": {**old["outputs"], "version": 2}}
    (each,) = report(tmp_path, *read(old, new, detailedDiff=detail)).resources
    assert {(one.path, one.state, one.cloud, one.expected) for one in each.properties} == {
        ("value", "[secret]", "[secret]", ""),
        ("version", None, 2, "only the cloud sets it"),
    }


# ---- what is expected


def test_an_output_that_no_program_sets_is_not_drift(tmp_path: Path) -> None:
    assert "arn" not in packages()["aws"].resource(BUCKET).inputs  # type: ignore[union-attr] # installed
    new = {**RUNS, "outputs": {**RUNS["outputs"], "arn": "arn:aws:s3:::other"}}
    found = report(tmp_path, *read(RUNS, new))
    assert (found.resources, found.exit_code) == ((), 0)
    assert found.expected[0].expected == "only the cloud sets it"


def test_an_autoscaled_pool_is_expected_and_its_limit_is_not(tmp_path: Path) -> None:
    grown = changed(POOL, scalingConfig={"minSize": 0, "maxSize": 4, "desiredSize": 3})
    assert report(tmp_path, *read(POOL, grown)).exit_code == 0
    both = changed(POOL, scalingConfig={"minSize": 0, "maxSize": 9, "desiredSize": 3})
    (each,) = report(tmp_path, *read(POOL, both)).resources
    assert [(one.path, bool(one.expected)) for one in each.properties] == [
        ("scalingConfig.maxSize", False),
        ("scalingConfig.desiredSize", True),
    ]


def test_what_the_program_ignores_is_expected(tmp_path: Path) -> None:
    cloud, exported = changed(RUNS, tags={"by": "hand"}), {**RUNS, "ignoreChanges": ["tags"]}
    assert report(tmp_path, *read(RUNS, cloud), state=[RUNS]).exit_code == 3
    assert report(tmp_path, *read(RUNS, cloud), state=[exported]).exit_code == 0


def test_rules_of_the_stack_in_a_list_are_expected_and_another_one_is_not(tmp_path: Path) -> None:
    web = state(GROUP, "web", {"name": "web"}, {"id": "web-1", "ingress": []})
    rule = state(RULE, "ssh", {"securityGroupId": "web-1", "type": "ingress"})
    one = {**web, "outputs": {**web["outputs"], "ingress": ingress("10.0.0.0/8")}}
    two = {**web, "outputs": {**web["outputs"], "ingress": ingress("10.0.0.0/8") + ingress("0.0.0.0/0")}}
    kept = read(rule, rule)
    assert report(tmp_path, *read(web, one), *kept).expected[0].expected == "ssh add to it"
    assert report(tmp_path, *read(web, two), *kept).exit_code == 3


def test_a_row_of_the_project_accepts_until_its_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINFLEET_DATE", "2026-11-22")
    cloud = changed(RUNS, tags={"by": "hand"})
    row = AcceptedDrift(BUCKET, "ticket 7", path="tags", until=date(2026, 11, 22))
    found = report(tmp_path, *read(RUNS, cloud), accepted=[row])
    assert found.exit_code == 0
    assert found.expected[0].expected == "accepted in rehearsal.toml until 2026-11-22: ticket 7"
    ended = AcceptedDrift(BUCKET, "ticket 7", path="tags", until=date(2026, 11, 21))
    found = report(tmp_path, *read(RUNS, cloud), accepted=[ended])
    assert found.exit_code == 3
    assert any("ended on 2026-11-21" in note for note in found.notes)
    other = AcceptedDrift(BUCKET, "ticket 7", name="other")
    assert any(
        "nothing drifted" in note for note in report(tmp_path, *read(RUNS, cloud), accepted=[other]).notes
    )


def test_a_property_row_does_not_accept_that_the_resource_is_gone(tmp_path: Path) -> None:
    rows = [AcceptedDrift(BUCKET, "why", path="tags")]
    assert report(tmp_path, *read(RUNS, None), accepted=rows).exit_code == 3
    assert report(tmp_path, *read(RUNS, None), accepted=[AcceptedDrift(BUCKET, "why")]).exit_code == 0


def test_rows_of_expected_drift_name_types_that_exist() -> None:
    known = [token for package in packages().values() for token in package.classes]
    from fnmatch import fnmatchcase

    for row in table():
        assert any(fnmatchcase(token, row.type) for token in known), row.type


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("tags", "tags.team", True),
        ("tags", "tagsAll.team", False),
        ("agentPoolProfiles.count", "agentPoolProfiles[2].count", True),
        (
            "metadata.annotations.deployment*kubernetes*io/revision",
            'metadata.annotations["deployment.kubernetes.io/revision"]',
            True,
        ),
    ],
)
def test_a_pattern_covers_what_is_below_it(pattern: str, path: str, matches: bool) -> None:
    assert covers(pattern, without_indexes(path)) is matches


# ---- the issue


def test_the_fingerprint_stays_and_the_digest_follows_the_drift(tmp_path: Path) -> None:
    one = report(tmp_path, *read(RUNS, changed(RUNS, tags={"a": "1"})))
    again = report(tmp_path, *read(NET, NET), *read(RUNS, changed(RUNS, tags={"a": "1"})))
    other = report(tmp_path, *read(RUNS, changed(RUNS, tags={"a": "2"})))
    assert one.fingerprint == other.fingerprint == "trainfleet-drift:fleet/prod"
    assert one.digest == again.digest != other.digest
    assert as_markdown(one).startswith(f"<!-- trainfleet-drift:fleet/prod digest:{one.digest} -->\n")


def test_an_issue_has_a_limit_and_says_what_is_missing(tmp_path: Path) -> None:
    many = [state(BUCKET, f"runs-{number}", {"tags": {"team": "x" * 100}}) for number in range(400)]
    found = report(
        tmp_path, *(event for each in many for event in read(each, changed(each, tags={"team": "y" * 100})))
    )
    text = as_markdown(found)
    assert len(text) <= MARKDOWN_LIMIT
    assert "more rows do not fit" in text
    assert len(json.dumps(found.as_json())) > MARKDOWN_LIMIT


def test_all_stacks_are_one_issue_with_the_worst_first(tmp_path: Path) -> None:
    low = report(tmp_path, *read(RUNS, changed(RUNS, tags={"a": "1"})))
    high = replace(report(tmp_path, *read(RUNS, None)), stack="eu")
    none = replace(report(tmp_path, *read(RUNS, RUNS)), stack="us")
    found = DriftReports("fleet", (low, high, none), (), (NotChecked("dev", "the stack is not deployed"),))
    text = as_markdown(found)
    assert text.startswith(
        f"<!-- trainfleet-drift:fleet digest:{found.digest} -->\n## Drift of fleet: 2 of 3"
    )
    assert text.index("### Drift of `fleet/eu`") < text.index("### Drift of `fleet/prod`")
    assert "the stack is not deployed" in text
    assert found.exit_code == 3
    failed = replace(found, failed=(NotChecked("ap", "no login"),))
    assert (failed.exit_code, failed.digest == found.digest) == (1, False)
    assert DriftReports("fleet", (none,)).exit_code == 0


HOSTILE = "a` ``b``` | @team [x](http://example.com) ![y](http://example.com) <img src=x> --> http://example.com *z*"


def test_values_of_the_cloud_are_text_in_the_issue(tmp_path: Path) -> None:
    """Who may tag a resource could otherwise write links, images and mentions into the issue."""
    cloud = changed(RUNS, tags={"team": "ml", HOSTILE: HOSTILE})
    group = changed(WEB, ingress=ingress(HOSTILE))
    grown = changed(RUNS, tags={HOSTILE: HOSTILE})
    other = {**grown, "urn": urn(BUCKET, "other")}
    row = AcceptedDrift(BUCKET, "known", name="other")
    old = {**RUNS, "urn": other["urn"]}
    events = [*read(RUNS, cloud), *read(WEB, group), *read(old, other)]
    text = as_markdown(report(tmp_path, *events, accepted=[row]))
    parsed = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in parsed for child in token.children or ()]
    assert not [each for each in inline if each.type in ("link_open", "image", "em_open")]
    html = {each.content for each in inline if each.type == "html_inline"}
    assert html == {"<br>", "<sub>", "</sub>"}
    assert not [each for each in inline if each.type == "text" and re.search(r"(?<!\w)@\w", each.content)]
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("| **")}
    assert len(columns) == 1


def test_an_incomplete_recording_is_not_proof(tmp_path: Path) -> None:
    log = event_log.read(write(tmp_path, *read(RUNS, RUNS), whole=False))
    assert assess(log, "a test").exit_code == 1


def test_a_resource_that_is_only_read_is_not_of_the_stack(tmp_path: Path) -> None:
    cloud = changed(RUNS, tags={"by": "hand"})
    exported = {**RUNS, "urn": urn(BUCKET, "runs"), "external": True}
    assert report(tmp_path, *read(RUNS, cloud), state=[exported]).checked == 0
