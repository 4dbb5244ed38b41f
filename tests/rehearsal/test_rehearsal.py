"""A whole rehearsal on the real engine: what is expected happens, and what goes wrong is named in plain
words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session, rehearse
from trainfleet.rehearsal.report import Step
from trainfleet.rehearsal.steps.session import APPLY

PROGRAMS = Path(__file__).with_name("programs")
Rehearsed = Any
"""conftest's `Rehearsed`: a report and the folder it left."""


def test_every_step_is_as_expected(small: Rehearsed) -> None:
    assert small.report.ok
    assert [step.name for step in small.report.steps if step.ran] == [
        "preview",
        "apply-fault",
        "apply",
        "no-op",
        "refresh",
        "update",
        "replace",
        "drift",
        "destroy",
        "again",
    ]


def test_a_resumed_apply_makes_only_the_rest(small: Rehearsed) -> None:
    made, rest = small.step("apply-fault").changes["create"], small.step("apply").changes["create"]
    assert 0 < made < small.report.resources
    assert made + rest == small.report.resources


def test_a_second_run_does_nothing_and_a_destroy_leaves_nothing(small: Rehearsed) -> None:
    assert small.step("no-op").changes == {}
    assert small.step("destroy").changes == {"delete": small.report.resources}


def test_a_destroyed_stack_comes_up_again(small: Rehearsed) -> None:
    """The program has a secret with a recovery window, so its generated name is kept."""
    assert small.step("again").changes == {"create": small.report.resources}
    assert len(json.loads((small.folder / "cloud.json").read_text())) == small.report.resources


def test_what_depends_on_a_replaced_resource_follows(small: Rehearsed) -> None:
    assert small.step("replace").changes["replace"] == 2
    assert "followed" in small.step("replace").detail


def test_drift_is_found_and_repaired(small: Rehearsed) -> None:
    assert small.step("drift").changes == {"update": 1}


def test_a_planted_secret_is_in_no_file(small: Rehearsed) -> None:
    files = [path for path in small.folder.rglob("*") if path.is_file()]
    assert any(path.name == "rehearsal.json" for path in files)
    assert [path for path in files if b"planted-6f1d" in path.read_bytes()] == []


def test_planned_resources_are_lines_of_json_without_secrets(small: Rehearsed) -> None:
    lines = [json.loads(line) for line in small.resources.read_text().splitlines()]
    token = next(line for line in lines if line["name"] == "token")
    assert token["type"] == "aws:secretsmanager/secretVersion:SecretVersion"
    assert token["inputs"] == {"secretId": "[unknown]", "secretString": "[secret]"}
    assert {"cluster", "provider", "trainer"} <= {line["name"] for line in lines}


def test_outputs_are_written(small: Rehearsed) -> None:
    outputs = json.loads(small.outputs.read_text())
    assert outputs["endpoint"].startswith("https://")
    assert len(outputs["subnets"]) == 2


MISTAKES = [
    (
        'aws.eks.Cluster("c", role_arn="x", vpc_config={"subnet_idz": ["a"]})',
        "aws:eks/cluster:Cluster c vpcConfig.subnet_idz: unknown property (did you mean `subnetIds`?; source: the SDK's types)",
    ),
    (
        'aws.eks.Cluster("c", role_arnn="x", vpc_config={"subnet_ids": []})',
        "__main__.py:4: Cluster c has no property `role_arnn`",
    ),
    (
        (
            'name = "c"\naws.eks.Cluster(f"{name}-1", role_arn="x",\n '
            " vpc_config=aws.eks.ClusterVpcConfigArgs(subnet_idz=[]))"
        ),
        "ClusterVpcConfigArgs c-1 has no property `subnet_idz`",
    ),
    ('b = aws.s3.Bucket("b")\npulumi.export("arn", b.arnn)', "Bucket b has no property `arnn`"),
    (
        'aws.s3.Bukcet("b")',
        'the module pulumi_aws.s3 has no property `Bukcet` (in: aws.s3.Bukcet("b")) (did you mean `Bucket`?)',
    ),
    (
        'k8s.core.v1.Pod("p", spec={"containers": [{"name": "x", "imag": "y"}]})',
        "kubernetes:core/v1:Pod p spec.containers[0].imag: unknown property (did you mean `image`?; source: the SDK's types)",
    ),
    (
        'aws.ec2.get_instance_type(instance_type="p5.48xlarge")',
        "the simulated clouds have no answer to: aws:ec2/getInstanceType:getInstanceType",
    ),
    ("1 / 0", "__main__.py:4: ZeroDivisionError: division by zero"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("code", "output"), MISTAKES, ids=[output[:50] for _, output in MISTAKES])
def test_a_mistake_stops_the_preview_and_names_resource_and_property(
    engine: Engine, program: Callable[[str], Path], code: str, output: str
) -> None:
    report = rehearse(read_project(program(code)), engine)
    assert not report.ok
    assert [step.name for step in report.steps if step.ran] == ["preview"]
    assert any(output in str(problem) for problem in report.problems), report.problems


def test_two_resources_of_one_name_are_found_at_apply(engine: Engine, program: Callable[[str], Path]) -> None:
    folder = program(
        "\n".join(f'aws.iam.Role("{name}", name="same", assume_role_policy="{{}}")' for name in ("a", "b"))
    )
    report = rehearse(read_project(folder), engine)
    assert any("same already exists" in str(problem) for problem in report.problems), report.problems


def test_a_program_that_never_settles_is_found_by_the_no_op(
    engine: Engine, program: Callable[[str], Path]
) -> None:
    folder = program(
        'import uuid\naws.ec2.Vpc("v", cidr_block="10.0.0.0/16", tags={"run": str(uuid.uuid4())})'
    )
    report = rehearse(read_project(folder), engine)
    failed = [(step.name, [str(each) for each in step.problems]) for step in report.steps if not step.ok]
    assert failed == [("no-op", ["aws:ec2/vpc:Vpc v: a second run would update it, because of tags"])]
    assert not report.ok


def test_protection_is_lifted_in_a_step_of_its_own_and_what_is_retained_is_named(
    engine: Engine, program: Callable[[str], Path]
) -> None:
    keep = "opts=pulumi.ResourceOptions(protect=True, retain_on_delete=True)"
    folder = program(
        f'b = aws.s3.Bucket("data", tags={{"a": "b"}}, {keep})\naws.s3.BucketVersioning("v", bucket=b.bucket,'
        ' versioning_configuration={"status": "Enabled"})'
    )
    report = rehearse(read_project(folder), engine)
    assert report.ok, report.problems
    steps = {step.name: step for step in report.steps}
    assert "data" in steps["unprotect"].detail
    assert steps["destroy"].detail == "kept by retain_on_delete: data"
    assert steps["destroy"].changes == {"delete": 1, "keep": 1}


def test_a_type_without_rules_is_reported_and_the_rehearsal_continues(
    engine: Engine, program: Callable[[str], Path]
) -> None:
    """A type that is newer than the source of the table."""
    report = rehearse(read_project(program('aws.mailmanager.Archive("a", name="mails")')), engine)
    assert report.ok, report.problems
    assert report.missing_rules == ["aws:mailmanager/archive:Archive"]


@pytest.mark.deep
def test_every_resource_may_fail_once(engine: Engine) -> None:
    report = rehearse(read_project(PROGRAMS / "small"), engine, RehearsalOptions(fault="every"))
    assert report.ok, report.problems
    assert f"each of {report.resources} creates failed once" in next(
        step.detail for step in report.steps if step.name == "apply-fault"
    )


def test_a_policy_pack_stops_a_violation(
    engine: Engine, program: Callable[[str], Path], tmp_path: Path
) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "PulumiPolicy.yaml").write_text("runtime: python\n")
    (pack / "__main__.py").write_text(
        "from pulumi_policy import EnforcementLevel, PolicyPack, ResourceValidationPolicy\ndef tags(args,"
        " report):\n    if args.resource_type == 'aws:ec2/vpc:Vpc' and not args.props.get('tags'):"
        " report('needs tags')\nPolicyPack('pack', enforcement_level=EnforcementLevel.MANDATORY,"
        " policies=[ResourceValidationPolicy('tags', 'tags', tags)])\n"
    )
    report = rehearse(
        read_project(program('aws.ec2.Vpc("bare", cidr_block="10.0.0.0/16")')),
        engine,
        RehearsalOptions([pack]),
    )
    assert not report.ok
    assert [str(problem) for problem in report.problems] == ["aws:ec2/vpc:Vpc bare: policy tags: needs tags"]


def test_nothing_real_can_be_reached(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "GOOGLE_CREDENTIALS",
        "ARM_CLIENT_SECRET",
        "AZURE_CLIENT_ID",
        "PULUMI_ACCESS_TOKEN",
    ):
        monkeypatch.setenv(name, "real")
    with rehearsal_session(read_project(PROGRAMS / "small"), engine, RehearsalOptions()) as rehearsal:
        environment = rehearsal.runner.environment
        assert [name for name, value in environment.items() if value == "real"] == []
        assert environment["PULUMI_BACKEND_URL"].startswith("file://")
        assert not Path(environment["KUBECONFIG"]).exists()


@pytest.mark.deep
def test_no_file_of_the_state_can_be_cut_off_by_a_killed_engine(engine: Engine) -> None:
    """The engine renames its state into place; an .attrs file next to it would be written in place, and cut
    off it makes the state unreadable.
    """
    with rehearsal_session(read_project(PROGRAMS / "small"), engine, RehearsalOptions()) as rehearsal:
        rehearsal.run(Step("apply", "apply"), *APPLY, checkpoints=True)
        files = [file for file in (rehearsal.runner.sandbox.folder / "state").rglob("*") if file.is_file()]
        assert rehearsal.runner.sandbox.state in files
        assert [file.name for file in files if file.suffix == ".attrs"] == []


def test_the_error_of_a_program_is_the_only_one(engine: Engine, program: Callable[[str], Path]) -> None:
    report = rehearse(read_project(program('raise pulumi.RunError("the spec is wrong")')), engine)
    (step,) = [each for each in report.steps if each.ran]
    assert [problem.what for problem in step.problems] == ["the spec is wrong"]
