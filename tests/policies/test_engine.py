"""The pack on the real engine: it starts, stops what breaks a rule, and checks at apply what a preview could
not know.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.policies.cases.every import CASES
from tests.policies.cases.stacks import STACK_CASES
from tests.policies.cases.table import BASES, TAGS, Case
from tests.policies.cases.table import broken as violating_props
from tests.policies.gather import copy_props
from trainfleet.policies.catalogue import RULES
from trainfleet.policies.engine.rule import UNKNOWN
from trainfleet.rehearsal.engine.engine_cli import Outcome
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN as UNKNOWN_ON_THE_WIRE
from trainfleet.rehearsal.simulation.schema import packages

PROGRAM = """
import json

import pulumi
import pulumi_aws as aws

pulumi.Config("trainfleet").require_object("platform")
tags = {"trainfleet:platform": "p", "trainfleet:environment": "dev", "trainfleet:owner": "a@b.c"}
role = aws.iam.Role("p-role", assume_role_policy="{}", tags=tags)
everything = {"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
# The role's ARN is known after the apply, and with it the document.
document = role.arn.apply(lambda arn: json.dumps({**everything, "Id": arn}))
aws.iam.RolePolicy("p-late", role=role.name, policy=document)
"""
BUCKET = 'aws.s3.Bucket("p-bare", tags=tags)\n'
MISSING = {
    f"{name}-everywhere"
    for name in (
        "access-to-data-logged",
        "no-public-bucket",
        "old-data-goes",
        "own-key-for-buckets",
        "recoverable-objects",
        "tls-only-bucket",
    )
}
"""What a bucket by itself lacks."""
RESOURCES_PROGRAM = """
import json
from pathlib import Path

import pulumi

spec = json.loads(Path(__file__).with_name("resources.json").read_text())
anchor = pulumi.CustomResource(spec["anchor"]["type"], "p-anchor", spec["anchor"]["props"])


def value(node):
    if isinstance(node, dict):
        return {key: value(each) for key, each in node.items()}
    if isinstance(node, list):
        return [value(each) for each in node]
    return anchor.id if node == "[unknown]" else node


for each in spec["resources"]:
    pulumi.CustomResource(each["type"], each["name"], value(each["props"]))
"""
CLOUD_SETTINGS = {
    "aws:region": "us-east-2",
    "gcp:project": "trainfleet-prod-123456",
    "gcp:region": "us-central1",
    "azure-native:location": "eastus",
    "azure-native:subscriptionId": "11111111-2222-3333-4444-555555555555",
}
ANCHORS = {
    "aws": {"type": "aws:ec2/eip:Eip", "props": {"domain": "vpc", "tags": TAGS}},
    "gcp": {"type": "gcp:compute/network:Network", "props": {"autoCreateSubnetworks": False}},
    "azure-native": {
        "type": "azure-native:resources:ResourceGroup",
        "props": {"location": "eastus", "tags": TAGS},
    },
    "kubernetes": {
        "type": "kubernetes:core/v1:ConfigMap",
        "props": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "anchor"}},
    },
}
"""By package: a harmless resource whose id a preview does not know."""


def to_json(node: Any) -> Any:
    """Properties as JSON, with a mark where a preview does not know."""
    if node is UNKNOWN:
        return "[unknown]"
    if isinstance(node, dict):
        return {key: to_json(each) for key, each in node.items()}
    return [to_json(each) for each in node] if isinstance(node, list) else node


def isolated_props(kind: str) -> dict[str, Any]:
    """The type's planned resource without what keeps the rules of a stack."""
    props = copy_props(BASES[kind].props)
    for alone in STACK_CASES:
        if alone.kind == kind:
            for path in alone.without:
                *parents, last = path.split(".")
                reduce(operator.getitem, parents, props).pop(last, None)
            if "metadata" in alone.props:
                props["metadata"] = {**props["metadata"], **alone.props["metadata"]}
    return props


def to_wire(node: Any) -> Any:
    if node is UNKNOWN:
        return UNKNOWN_ON_THE_WIRE
    if isinstance(node, dict):
        return {key: to_wire(each) for key, each in node.items()}
    return [to_wire(each) for each in node] if isinstance(node, list) else node


def accepted_by_provider(cloud: str, case: Case) -> bool:
    """Whether the simulated provider takes the resource: one that it refuses shows the pack no properties."""
    package, model = packages()[cloud], CLOUD_MODELS[cloud]
    if case.type not in package.classes:
        return False
    settings = {
        name.rpartition(":")[2]: value
        for name, value in CLOUD_SETTINGS.items()
        if name.startswith(f"{cloud}:")
    }
    return not model.check(
        package,
        case.type,
        model.completed(package.resource(case.type), to_wire(violating_props(case).props), settings),
    )


def platform_of(kind: str) -> str:
    """The platform that the base's tags name, with which its name has to begin."""
    return BASES[kind].name.partition("-")[0]


def planned_inputs(log: str) -> dict[str, Any]:
    """By name: the inputs with which the engine plans each resource."""
    events = [json.loads(line).get("resourcePreEvent") for line in log.splitlines() if line]
    steps = [event["metadata"] for event in events if event]
    return {step["urn"].rpartition("::")[2]: step["new"]["inputs"] for step in steps if step.get("new")}


@pytest.fixture
def planned() -> dict[str, Any]:
    """By name: the inputs of each resource in the last run."""
    return {}


@pytest.fixture
def engine(
    tmp_path: Path, root: Path, planned: dict[str, Any]
) -> Iterator[Callable[..., Callable[[str], Outcome]]]:
    """Start a program with a platform's settings; gives a function that runs one command with the pack."""
    with ExitStack() as stack:

        def start(
            program: str,
            platform: dict[str, Any] | None = None,
            resources: list[dict[str, Any]] | None = None,
            anchor: str = "",
            pack: Path = root / "policies",
            levels: dict[str, Any] | None = None,
            analyzer: str = "",
        ) -> Callable[[str], Outcome]:
            (tmp_path / "__main__.py").write_text(program)
            (tmp_path / "resources.json").write_text(
                json.dumps({"resources": resources, "anchor": ANCHORS.get(anchor)})
            )
            (tmp_path / "Pulumi.yaml").write_text("name: small\nruntime: python\n")
            settings = {"config": {"trainfleet:platform": platform or {"exceptions": []}, **CLOUD_SETTINGS}}
            (tmp_path / "Pulumi.dev.yaml").write_text(yaml.safe_dump(settings))
            rehearsal = stack.enter_context(
                rehearsal_session(read_project(tmp_path, "dev"), find_engine(), RehearsalOptions())
            )

            if analyzer:
                (rehearsal.runner.sandbox.folder / "bin" / "pulumi-analyzer-policy-python").write_text(
                    analyzer
                )

            def run(command: str) -> Outcome:
                more = ["--yes", "--skip-preview"] if command == "up" else []
                if levels:
                    (tmp_path / "levels.json").write_text(json.dumps(levels))
                    more += ["--policy-pack-config", str(tmp_path / "levels.json")]
                outcome = rehearsal.runner.run(command, *more, "--policy-pack", str(pack))
                log = rehearsal.runner.sandbox.file(f"events-{rehearsal.runner.count}.jsonl")
                planned.clear()
                planned.update(planned_inputs(log.read_text(errors="replace")))
                return outcome

            return run

        yield start


def broken(outcome: Outcome) -> set[str]:
    return {violation.policy for violation in outcome.violations if violation.level == "mandatory"}


def test_what_a_preview_cannot_know_is_checked_when_it_is_applied(
    engine: Callable[..., Callable[[str], Outcome]],
) -> None:
    run = engine(PROGRAM)
    preview = run("preview")
    assert (preview.code, broken(preview)) == (0, set()), preview.output
    applied = run("up")
    assert applied.code != 0
    assert broken(applied) == {"no-star-role"}, applied.output


def test_a_bucket_that_lacks_its_companions_stops_a_preview(
    engine: Callable[..., Callable[[str], Outcome]],
) -> None:
    preview = engine(PROGRAM + BUCKET)("preview")
    assert preview.code != 0
    assert broken(preview) == MISSING, preview.output
    assert "To fix:" in preview.violations[0].message


def test_an_exception_written_in_the_stack_reaches_the_pack(
    engine: Callable[..., Callable[[str], Outcome]],
) -> None:
    entry = {"resource": "p-bare", "reason": "moved next week", "until": "2999-01-01"}
    names = [
        policy.removesuffix("-everywhere") if policy.startswith("no-") else policy
        for policy in sorted(MISSING)
    ]
    preview = engine(PROGRAM + BUCKET, {"exceptions": [{"policy": policy, **entry} for policy in names]})(
        "preview"
    )
    assert (preview.code, broken(preview)) == (0, set()), preview.output


def test_what_is_mandatory_in_production_is_advice_in_dev(
    engine: Callable[..., Callable[[str], Outcome]],
) -> None:
    preview = engine(PROGRAM + BUCKET, {"cloud": "aws", "environment": "dev"})("preview")
    assert broken(preview) == {"no-public-bucket-everywhere", "tls-only-bucket-everywhere"}, preview.output
    advice = {violation.policy for violation in preview.violations if violation.level == "advisory"}
    assert advice == MISSING - broken(preview)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure-native", "kubernetes"])
def test_each_rule_is_reported_by_the_engine_when_a_program_breaks_it(
    engine: Callable[..., Callable[[str], Outcome]], cloud: str
) -> None:
    """One program per cloud with one violating resource for each rule that the cloud keeps, all of which its
    provider would take.
    """
    cases = {
        case.rule: case
        for case in reversed(CASES)
        if case.kind.startswith(f"{cloud}:") and accepted_by_provider(cloud, case)
    }
    resources = [
        {"type": case.type, "name": f"p-{rule}", "props": to_json(violating_props(case).props)}
        for rule, case in cases.items()
    ]
    preview = engine(RESOURCES_PROGRAM, resources=resources, anchor=cloud)("preview")
    reported = {(violation.policy, violation.urn.rpartition("::")[2]) for violation in preview.violations}
    assert {(rule, f"p-{rule}") for rule in cases} - reported == set(), preview.output[-3000:]
    assert {rule.name for rule in RULES if any(kind.startswith(f"{cloud}:") for kind in rule.checks)} == set(
        cases
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure-native", "kubernetes"])
def test_each_rule_of_a_whole_stack_is_reported_by_the_engine(
    engine: Callable[..., Callable[[str], Outcome]], cloud: str
) -> None:
    """One program per cloud with one resource of each type that needs another, and no other."""
    kinds = dict.fromkeys(one.kind for one in STACK_CASES if one.kind.startswith(f"{cloud}:"))
    resources = [
        {"type": kind, "name": f"{platform_of(kind)}-alone-{index}", "props": to_json(isolated_props(kind))}
        for index, kind in enumerate(kinds)
    ]
    names = {each["type"]: each["name"] for each in resources}
    preview = engine(RESOURCES_PROGRAM, resources=resources, anchor=cloud)("preview")
    reported = {(violation.policy, violation.urn.rpartition("::")[2]) for violation in preview.violations}
    expected = {(f"{one.rule}-everywhere", names[one.kind]) for one in STACK_CASES if one.kind in names}
    assert expected - reported == set(), preview.output[-3000:]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("aws:kms/key:Key", "tags"),
        ("gcp:storage/bucket:Bucket", "labels"),
        ("azure-native:network:VirtualNetwork", "tags"),
    ],
)
def test_a_resource_of_another_platform_stops_a_preview(
    engine: Callable[..., Callable[[str], Outcome]], kind: str, path: str
) -> None:
    mine, theirs = to_json(copy_props(BASES[kind].props)), to_json(copy_props(BASES[kind].props))
    key = next(key for key in theirs[path] if key.endswith("platform"))
    theirs[path] = {**theirs[path], key: "other"}
    own = platform_of(kind)
    resources = [
        {"type": kind, "name": f"{own}-mine", "props": mine},
        {"type": kind, "name": "other-theirs", "props": theirs},
    ]
    preview = engine(RESOURCES_PROGRAM, resources=resources, anchor="kubernetes")("preview")
    assert preview.code != 0
    # Which of the two the engine registers first, it decides itself.
    (found,) = [
        violation
        for violation in preview.violations
        if violation.policy == "one-platform-per-stack-everywhere"
    ]
    strange = found.urn.rpartition("::")[2]
    assert (strange in (f"{own}-mine", "other-theirs"), found.level) == (True, "mandatory"), preview.output[
        -3000:
    ]
    output = ("other", f"{own}-mine", own) if strange == "other-theirs" else (own, "other-theirs", "other")
    assert (
        "its tags name platform `{}`, but those of {} in the same stack name `{}`".format(*output)
        in found.message
    )
