"""From the engine's events to what a reviewer reads: verbs, properties, what forces a replacement, what may
not be shown.
"""

from __future__ import annotations

import json
from typing import Any

from trainfleet.rehearsal.diff.change import SECRET, UNKNOWN, Change, Verb
from trainfleet.rehearsal.diff.compare import changes, deletions
from trainfleet.rehearsal.diff.model import Diff, Verdict
from trainfleet.rehearsal.diff.render import as_text
from trainfleet.rehearsal.diff.worktrees import Revision
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN as WIRE
from trainfleet.rehearsal.simulation.pulumi_values import secret

BUCKET = "aws:s3/bucket:Bucket"


def urn(token: str, name: str) -> str:
    return f"urn:pulumi:one::tiny::{token}::{name}"


def event(
    op: str,
    token: str = BUCKET,
    name: str = "runs",
    old: Any = None,
    new: Any = None,
    diff: dict[str, str] | None = None,
    **more: Any,
) -> dict:
    def state(inputs: Any) -> Any:
        return (
            None
            if inputs is None
            else {
                "urn": urn(token, name),
                "type": token,
                "custom": True,
                "id": "",
                "inputs": inputs,
                "outputs": {},
            }
        )

    detail = {path: {"diffKind": kind, "inputDiff": True} for path, kind in (diff or {}).items()} or None
    return {
        "op": op,
        "urn": urn(token, name),
        "type": token,
        "old": state(old),
        "new": state(new),
        "detailedDiff": detail,
        **more,
    }


def one(*events: dict, before: Any = ()) -> Change:
    found, _ = changes(events, before)
    assert len(found) == 1
    return found[0]


def resource(token: str = BUCKET, name: str = "runs", **more: Any) -> dict:
    return {
        "urn": urn(token, name),
        "type": token,
        "custom": True,
        "id": "runs-1a2b3c4",
        "inputs": {},
        "outputs": {},
        **more,
    }


def test_an_update_says_what_changed_from_what_to_what() -> None:
    change = one(
        event(
            "update",
            old={"tags": {"team": "ml"}},
            new={"tags": {"team": "vision"}},
            diff={"tags.team": "update"},
        )
    )
    assert change.verb is Verb.UPDATE
    assert [(each.path, each.old, each.new, each.forces) for each in change.properties] == [
        ("tags.team", "ml", "vision", False)
    ]
    assert not change.destructive


def test_three_events_of_a_replacement_are_one_change_with_its_reason() -> None:
    old, new, diff = {"bucket": "a"}, {"bucket": "b"}, {"bucket": "update-replace"}
    change = one(
        event("create-replacement", old=old, new=new, diff=diff, keys=["bucket"]),
        event("replace", old=old, new=new, diff=diff, keys=["bucket"]),
        event("delete-replaced", old=old),
        before=[resource(protect=True)],
    )
    assert (change.verb, change.forced_by, change.protected, change.delete_first) == (
        Verb.REPLACE,
        ("bucket",),
        True,
        False,
    )
    assert change.loss is not None
    assert change.loss.kinds == ("data",)
    assert change.destructive


def test_a_replacement_that_deletes_first_says_so() -> None:
    old, new, diff = {"bucket": "a"}, {"bucket": "b"}, {"bucket": "update-replace"}
    events = [
        event("delete-replaced", old=old),
        event("replace", old=old, new=new, diff=diff),
        event("create-replacement", old=old, new=new, diff=diff),
    ]
    assert one(*events).delete_first


def test_a_value_that_only_the_apply_knows_is_reported_in_words() -> None:
    change = one(
        event("update", old={"policy": "old"}, new={"policy": f"arn:{WIRE}"}, diff={"policy": "update"})
    )
    assert change.properties[0].new == f"arn:[{UNKNOWN}]"
    change = one(event("update", old={"policy": "old"}, new={"policy": WIRE}, diff={"policy": "update"}))
    assert change.properties[0].new == UNKNOWN


def test_secrets_are_masked_on_both_sides() -> None:
    change = one(
        event(
            "update", old={"acl": secret("hush")}, new={"acl": secret("hush again")}, diff={"acl": "update"}
        )
    )
    assert (change.properties[0].old, change.properties[0].new) == (SECRET, SECRET)
    assert "hush" not in repr(change)


def test_the_data_of_a_kubernetes_secret_is_masked_whatever_the_program_says() -> None:
    token = "kubernetes:core/v1:Secret"
    change = one(
        event(
            "update",
            token,
            old={"data": {"a": "aHVzaA=="}},
            new={"data": {"a": "b3RoZXI="}},
            diff={"data.a": "update"},
        )
    )
    assert "aHVzaA==" not in repr(change)
    assert change.properties[0].path == "data.a"


def test_one_changed_word_in_a_policy_document_is_shown_alone() -> None:
    old, new = (
        json.dumps({"Statement": [{"Action": action, "Effect": "Allow"}]}) for action in ("s3:Get", "s3:*")
    )
    change = one(event("update", old={"policy": old}, new={"policy": new}, diff={"policy": "update"}))
    assert [(each.path, each.old, each.new) for each in change.properties] == [
        ("policy → Statement[0].Action", "s3:Get", "s3:*")
    ]


def test_a_list_of_plain_values_is_shown_once_and_whole() -> None:
    diff = {"subnetIds[0]": "update", "subnetIds[1]": "add"}
    change = one(event("update", old={"subnetIds": ["a"]}, new={"subnetIds": ["b", "c"]}, diff=diff))
    assert [(each.path, each.old, each.new) for each in change.properties] == [
        ("subnetIds", ["a"], ["b", "c"])
    ]


def test_synthetic_ids_are_shown_as_the_resources_they_belong_to() -> None:
    vpc = resource("aws:ec2/vpc:Vpc", "vpc", id="vpc-061b374a7955f4dc2")
    change = one(
        event(
            "update", old={"vpcId": "vpc-061b374a7955f4dc2"}, new={"vpcId": WIRE}, diff={"vpcId": "update"}
        ),
        before=[vpc],
    )
    assert change.properties[0].old == "‹vpc›"


def test_the_simulated_account_is_shown_as_the_account() -> None:
    vpc = resource("aws:ec2/vpc:Vpc", "vpc", id="vpc-061b374a7955f4dc2")
    vpc["outputs"] = {"ownerId": "111122223333"}
    arn = "arn:aws:iam::111122223333:role/admin"
    change = one(
        event("update", old={"arn": arn}, new={"arn": WIRE}, diff={"arn": "update"}),
        before=[vpc],
    )
    assert change.properties[0].old == "arn:aws:iam::‹account›:role/admin"


def test_what_stays_as_it_is_and_components_are_not_changes() -> None:
    component = event("create", "trainfleet:aws:Network", "network", new={})
    found, unchanged = changes(
        [event("same", old={}, new={}), component, event("create", "pulumi:pulumi:Stack", "s", new={})], []
    )
    assert (found, unchanged) == ([], 1)


def test_a_deleted_stack_deletes_what_clouds_made() -> None:
    kept = resource(name="kept", retainOnDelete=True)
    found = deletions(
        [
            resource(),
            kept,
            resource("pulumi:providers:aws", "default_7_51_1"),
            resource("trainfleet:aws:Network", "network"),
        ]
    )
    assert [(change.name, change.verb, change.kept) for change in found] == [
        ("kept", Verb.DELETE, True),
        ("runs", Verb.DELETE, False),
    ]


def test_a_type_that_nobody_has_checked_counts_as_lost() -> None:
    change = one(event("delete", "aws:neptune/cluster:Cluster", old={}))
    assert change.loss is None
    assert change.destructive


# ---- effects that no rule knows

DATABASE = "aws:dms/instanceProfile:InstanceProfile"


def updated(token: str, old: dict, new: dict, **diff: str) -> Change:
    return one(event("update", token, "db", old=old, new=new, diff=diff))


def verdict_of(change: Change, *, accept_unknown: bool = False) -> Diff:
    side = Revision("r", "abc", "t")
    return Diff("one", side, side, "there", (change,), None, None, accept_unknown=accept_unknown)


def test_an_update_of_a_type_without_rules_may_replace_and_is_not_exit_2() -> None:
    change = updated(DATABASE, {"engine": "mysql"}, {"engine": "postgres"}, engine="update")
    assert (change.verb, change.may_replace, change.destructive) == (Verb.UPDATE, ("engine",), False)
    found = verdict_of(change)
    assert (found.verdict, found.exit_code) == (Verdict.UNKNOWN, 3)
    assert "1 updated (MAY REPLACE (UNKNOWN): db)" in found.blast_radius
    assert "MAY REPLACE (UNKNOWN)" in as_text(found)
    assert found.as_json()["unknown"] == {"accepted": False, "may_replace": 1, "may_lose": 1}


def test_an_accepted_unknown_is_a_change_that_is_still_named() -> None:
    found = verdict_of(
        updated(DATABASE, {"engine": "a"}, {"engine": "b"}, engine="update"), accept_unknown=True
    )
    assert (found.verdict, found.exit_code) == (Verdict.CHANGE, 2)
    assert "MAY REPLACE (UNKNOWN): db" in found.blast_radius


def test_an_update_that_a_rule_knows_is_certain() -> None:
    change = updated(BUCKET, {"tags": {"a": "1"}}, {"tags": {"a": "2"}}, **{"tags.a": "update"})
    assert change.may_replace == ()
    assert verdict_of(change).exit_code == 2


def test_a_custom_kind_of_kubernetes_is_replaced_only_by_its_name() -> None:
    spec = {"spec": {"cohort": "a"}}, {"spec": {"cohort": "b"}}
    change = updated("kubernetes:kueue.x-k8s.io/v1beta1:ClusterQueue", *spec, **{"spec.cohort": "update"})
    assert change.may_replace == ()
