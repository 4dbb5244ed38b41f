"""`diff --events`: recordings of real previews in each form that Pulumi writes, whole, truncated and noisy."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.infra.catalog.cost import CostLimits
from trainfleet.rehearsal.diff.change import SECRET, UNKNOWN, Verb
from trainfleet.rehearsal.diff.html_page import as_html
from trainfleet.rehearsal.diff.model import Diff, Verdict
from trainfleet.rehearsal.diff.real_preview import diff_of
from trainfleet.rehearsal.diff.render import as_markdown, as_text

EXPORTS = Path(__file__).with_name("exports")

WHOLE: dict[str, tuple[Verdict, dict[Verb, list[str]], dict[str, list[str]]]] = {
    "digest-cascading.json": (
        Verdict.CHANGE,
        {Verb.UPDATE: ["api-key", "app-handler", "app-key", "db-password"]},
        {"app-key": ["description", "enableKeyRotation"], "api-key": ["value"]},
    ),
    "digest-tags-and-sets.json": (
        Verdict.CHANGE,
        {Verb.UPDATE: ["test-bucket", "test-bucket-versioning", "test-role"], Verb.REPLACE: ["test-sg"]},
        {"test-bucket-versioning": ["versioningConfiguration.status"]},
    ),
    "digest-ssm-secrets.json": (
        Verdict.CHANGE,
        {Verb.UPDATE: ["api-token", "app-config", "db-password"]},
        {"api-token": ["value"]},
    ),
    "digest-tls-replace.json": (
        Verdict.DESTRUCTIVE,
        {Verb.CREATE: ["cmd-38"], Verb.UPDATE: ["cmd-4"], Verb.REPLACE: ["tls-key-0"]},
        {"tls-key-0": ["algorithm", "ecdsaCurve"], "cmd-4": ["create", "environment"]},
    ),
    "digest-command-triggers.json": (
        Verdict.DESTRUCTIVE,
        {Verb.UPDATE: ["api-cmd"], Verb.REPLACE: ["cache-cmd", "cache-pass"]},
        {"api-cmd": ["environment.DRIFT"]},
    ),
    "api-events-tls-delete.json": (
        Verdict.DESTRUCTIVE,
        {Verb.DELETE: ["ca-cert", "server-cert"]},
        {},
    ),
    "log-webserver-userdata.jsonl": (
        Verdict.DESTRUCTIVE,
        {Verb.REPLACE: ["web-server-www"]},
        {"web-server-www": ["userData"]},
    ),
    "log-dynamic-replace.jsonl": (
        Verdict.DESTRUCTIVE,
        {Verb.UPDATE: ["test-x"], Verb.REPLACE: ["test-r"]},
        {"test-x": ["quux"]},
    ),
    "log-eks-create.jsonl": (
        Verdict.CHANGE,
        {
            Verb.CREATE: [
                "eks-cluster",
                "eks-role",
                "eks-rpa-cluster-policy",
                "eks-rpa-service-policy",
                "eks-sg",
            ]
        },
        {},
    ),
    "log-template-body.jsonl": (
        Verdict.CHANGE,
        {Verb.UPDATE: ["cluster-nodes"]},
        {"cluster-nodes": ["templateBody"]},
    ),
    "log-refresh.jsonl": (Verdict.CHANGE, {}, {}),
    "log-preview-refresh.jsonl": (Verdict.CHANGE, {Verb.UPDATE: ["resA"]}, {}),
}
"""What each recording has to become: verdict, names by verb, and properties of some resources."""


@pytest.mark.parametrize("name", WHOLE)
def test_a_real_recording_becomes_its_diff(name: str) -> None:
    verdict, by_verb, properties = WHOLE[name]
    found = diff_of(EXPORTS / name)
    assert found.verdict is verdict
    assert {
        verb: sorted(change.name for change in changes) for verb in Verb if (changes := found.of(verb))
    } == by_verb
    for change in found.changes:
        if change.name in properties:
            assert [each.path for each in change.properties] == properties[change.name]
    assert found.exit_code == {Verdict.CHANGE: 2, Verdict.DESTRUCTIVE: 3}[verdict]
    for text in (
        as_text(found),
        as_markdown(found),
        as_html(found),
        json.dumps(found.as_json(), default=str),
    ):
        assert all(name in text for names in by_verb.values() for name in names)


def test_every_recording_has_its_row() -> None:
    files = {path.name for path in EXPORTS.glob("*.json*") if not path.name.startswith(("export-", "state-"))}
    assert files == set(WHOLE)
    listed = (EXPORTS / "README.md").read_text()
    assert [path.name for path in EXPORTS.glob("*.json*") if f"| {path.name} |" not in listed] == []


def test_what_a_real_provider_replaces_is_certain() -> None:
    found = diff_of(EXPORTS / "digest-tags-and-sets.json")
    assert all(change.may_replace == () for change in found.changes)
    (group,) = found.of(Verb.REPLACE)
    assert group.forced_by == ("description",)


def test_ids_of_a_real_account_are_shown(tmp_path: Path) -> None:
    vpc = "vpc-061b374a7955f4dc2"
    owner = step("same", {"cidr": "10.0.0.0/8"}, {"cidr": "10.0.0.0/8"}, "aws:ec2/vpc:Vpc")
    owner["oldState"]["id"] = owner["newState"]["id"] = vpc
    owner["urn"] = owner["urn"].replace("::db", "::vpc")
    found = digest(tmp_path, owner, step("update", {"vpcId": vpc}, {"vpcId": "vpc-2"}))
    assert found.changes[0].properties[0].old == vpc


# ---- drift


def test_a_refresh_lists_what_changed_and_what_was_deleted() -> None:
    found = diff_of(EXPORTS / "log-refresh.jsonl")
    assert [(each.name, each.gone) for each in found.drift] == [("resC", True), ("resA", False)]
    assert [(each.path, each.old, each.new) for each in found.drift[1].properties] == [
        ("baz", None, "qux"),
        ("oof", None, "zab"),
    ]
    for text in (as_text(found), as_markdown(found), as_html(found)):
        assert "Changed outside Pulumi" in text
        assert "resC" in text
        assert "qux" in text
    assert found.as_json()["drift"][0]["what"] == "deleted"
    assert "2 changed outside Pulumi" in found.blast_radius
    assert found.exit_code == 2


def test_drift_is_separate_from_the_update_that_follows() -> None:
    found = diff_of(EXPORTS / "log-preview-refresh.jsonl")
    (drift,) = found.drift
    assert [(each.path, each.old, each.new) for each in drift.properties] == [("foo", "bar", "baz")]
    assert [change.name for change in found.changes] == ["resA"]


# ---- costs


def test_a_recording_has_the_costs_of_both_sides(tmp_path: Path) -> None:
    machine = "aws:ec2/instance:Instance"
    one = step("update", {"instanceType": "g5.xlarge"}, {"instanceType": "g5.12xlarge"}, machine)
    found = digest(tmp_path, one)
    assert found.before is not None
    assert found.after is not None
    assert (found.before.min_usd_per_hour, found.after.min_usd_per_hour) == pytest.approx(
        (1.006, 5.672), rel=0.02
    )
    assert "/month" in found.blast_radius
    assert any("no unchanged resources" in note for note in found.notes)
    limited = diff_of(tmp_path / "preview.jsonl", limits=CostLimits(1000))
    assert limited.exit_code == 4
    deleted = digest(tmp_path, step("delete", {"instanceType": "g5.xlarge"}, None, machine))
    assert deleted.after is not None
    assert deleted.after.parts == ()


def test_a_recording_without_prices_has_no_costs(tmp_path: Path) -> None:
    found = digest(tmp_path, step("update", {"length": 8}, {"length": 9}, "random:index:RandomString"))
    assert (found.before, found.after) == (None, None)


def test_half_a_recording_has_no_costs(tmp_path: Path) -> None:
    lines = (EXPORTS / "log-webserver-userdata.jsonl").read_text().splitlines()
    whole = diff_of(write(tmp_path, "\n".join(lines)))
    assert whole.after is not None
    cut = diff_of(write(tmp_path, "\n".join(line for line in lines if "summaryEvent" not in line)))
    assert cut.after is None


# ---- damaged and noisy recordings


def write(folder: Path, text: str, name: str = "preview.jsonl") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_truncated_log_is_shown_and_is_not_a_verdict(tmp_path: Path) -> None:
    text = (EXPORTS / "log-template-body.jsonl").read_text()
    cut = text[: text.index('"summaryEvent"') + 20]
    found = diff_of(write(tmp_path, cut))
    assert [change.name for change in found.changes] == ["cluster-nodes"]
    assert (found.verdict, found.exit_code) == (Verdict.INCOMPLETE, 3)
    assert "truncated" in found.incomplete[0]
    assert "THE PREVIEW IS INCOMPLETE" in found.blast_radius
    assert diff_of(write(tmp_path, cut), accept_unknown=True).exit_code == 2


def test_a_log_without_its_last_lines_is_not_whole(tmp_path: Path) -> None:
    lines = (EXPORTS / "log-eks-create.jsonl").read_text().splitlines()
    cut = [line for line in lines if "summaryEvent" not in line]
    found = diff_of(write(tmp_path, "\n".join(cut)))
    assert "no summary" in found.incomplete[0]


def test_a_truncated_digest_shows_its_complete_steps(tmp_path: Path) -> None:
    text = (EXPORTS / "digest-ssm-secrets.json").read_text()
    found = diff_of(write(tmp_path, text[: int(len(text) * 0.8)]))
    assert found.changes
    assert len(found.changes) < 3
    assert "ends in the middle" in found.incomplete[0]
    assert found.exit_code == 3


def test_warnings_of_the_cli_are_ignored_and_named(tmp_path: Path) -> None:
    warning = "warning: A new version of Pulumi is available."
    for name in ("log-eks-create.jsonl", "digest-tags-and-sets.json"):
        file = write(tmp_path, f"{warning}\n{(EXPORTS / name).read_text()}")
        found = diff_of(file)
        assert found.incomplete == ()
        assert any(warning in note for note in found.notes), name
        assert len(found.changes) == len(diff_of(EXPORTS / name).changes)


def test_output_that_powershell_redirected_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "preview.json"
    file.write_bytes((EXPORTS / "digest-tags-and-sets.json").read_text().encode("utf-16"))
    assert len(diff_of(file).changes) == 4


def test_a_failed_preview_is_not_a_verdict(tmp_path: Path) -> None:
    document = json.loads((EXPORTS / "digest-tags-and-sets.json").read_text())
    document["diagnostics"] = [{"severity": "error", "message": "aws:ec2: no credentials"}]
    found = diff_of(write(tmp_path, json.dumps(document)))
    assert found.verdict is Verdict.INCOMPLETE
    assert "no credentials" in found.incomplete[0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("Previewing update (dev):\n + aws:s3:Bucket b create\n", "contains neither"),
        ('{"version": 3, "deployment": {"resources": []}}', "pass it with --state"),
        ('{"hello": 1}', "contains neither"),
    ],
)
def test_what_is_not_a_recording_is_refused(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        diff_of(write(tmp_path, text))


def test_a_recording_of_another_stack_is_refused() -> None:
    with pytest.raises(InputError, match="is of the stack `dev`, not `prod`"):
        diff_of(EXPORTS / "log-eks-create.jsonl", "prod")


# ---- secrets and unknown operations


def step(
    op: str, old: Any, new: Any, token: str = "aws:rds/instance:Instance", **more: Any
) -> dict[str, Any]:
    def state(inputs: Any) -> Any:
        return inputs if inputs is None else {"type": token, "custom": True, "inputs": inputs, "outputs": {}}

    urn = f"urn:pulumi:dev::test::{token}::db"
    return {"op": op, "urn": urn, "oldState": state(old), "newState": state(new), **more}


def digest(folder: Path, *steps: dict[str, Any]) -> Diff:
    return diff_of(write(folder, json.dumps({"steps": list(steps), "changeSummary": {}})))


def test_an_update_without_details_shows_the_inputs_that_differ(tmp_path: Path) -> None:
    (change,) = digest(
        tmp_path, step("update", {"engine": "a", "size": 1}, {"engine": "b", "size": 1})
    ).changes
    assert [(each.path, each.old, each.new) for each in change.properties] == [("engine", "a", "b")]
    assert change.may_replace == ()


def test_secrets_and_private_keys_are_not_shown(tmp_path: Path) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nabc"
    found = digest(tmp_path, step("update", {"a": key, "p": "[secret]"}, {"a": f"{key}d", "p": "[secret]"}))
    assert [(each.old, each.new) for each in found.changes[0].properties] == [(SECRET, SECRET)]
    assert "abc" not in as_text(found) + json.dumps(found.as_json())


def test_an_unknown_value_is_known_after_the_apply(tmp_path: Path) -> None:
    wire = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
    found = digest(tmp_path, step("update", {"subnet": "a"}, {"subnet": wire}, diffReasons=["subnet"]))
    assert found.changes[0].properties[0].new == UNKNOWN


def test_an_operation_of_a_newer_pulumi_counts_as_a_change(tmp_path: Path) -> None:
    assert digest(tmp_path, step("transmute", {"a": 1}, {"a": 2})).exit_code == 2


def test_a_protected_resource_says_so(tmp_path: Path) -> None:
    one = step("delete", {"a": 1}, None)
    one["oldState"]["protect"] = True
    (change,) = digest(tmp_path, one).changes
    assert change.protected
    assert change.destructive


# ---- the command


def test_no_project_and_no_engine_are_needed(
    trainfleet: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    nothing = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TRAINFLEET_PULUMI": str(tmp_path / "none")}
    file = EXPORTS / "digest-tls-replace.json"
    for form in ("table", "markdown", "html", "json", "sarif", "junit"):
        done = trainfleet("diff", "--events", str(file), "--format", form, cwd=tmp_path, **nothing)
        assert done.returncode == 3, done.stderr
        assert done.stdout
    assert list(tmp_path.iterdir()) == []
