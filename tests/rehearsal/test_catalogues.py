"""New values of catalogues are warnings, a project accepts what it knows, and every rejection has a source."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from trainfleet.dates import as_of
from trainfleet.errors import InputError
from trainfleet.rehearsal import accepted
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearse
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.schema import packages

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
GROUP = {
    "clusterName": "c",
    "nodeRoleArn": "arn:aws:iam::111122223333:role/r",
    "subnetIds": ["subnet-1"],
    "scalingConfig": {"minSize": 0, "maxSize": 1, "desiredSize": 0},
}


def mistakes(token: str, inputs: dict[str, Any]) -> list[Any]:
    return CLOUD_MODELS["aws"].check(packages()["aws"], token, inputs)


@pytest.mark.parametrize(
    ("token", "inputs", "path"),
    [
        ("aws:ec2/launchTemplate:LaunchTemplate", {"instanceType": "p7.48xlarge"}, "instanceType"),
        (NODE_GROUP, {**GROUP, "amiType": "BOTTLEROCKET_x86_64_NEURON"}, "amiType"),
    ],
)
def test_a_new_machine_or_image_is_a_warning_with_its_source(
    token: str, inputs: dict[str, Any], path: str
) -> None:
    (found,) = mistakes(token, inputs)
    assert (found.path, found.open) == (path, True)
    assert "botocore" in found.with_source


def test_another_spelling_of_a_known_machine_is_rejected() -> None:
    (found,) = mistakes("aws:ec2/launchTemplate:LaunchTemplate", {"instanceType": "P5_48xlarge"})
    assert not found.open


@pytest.mark.parametrize(
    ("token", "inputs", "source"),
    [
        ("aws:ec2/vpc:Vpc", {"cidr": "10.0.0.0/16"}, "SDK's types"),
        ("aws:ec2/launchTemplate:LaunchTemplate", {"instanceType": "P5_48xlarge"}, "botocore"),
        ("aws:ec2/vpc:Vpc", {"cidrBlock": "10.0.0.0/8"}, "rule"),
    ],
)
def test_every_rejection_names_its_source(token: str, inputs: dict[str, Any], source: str) -> None:
    found = mistakes(token, inputs)
    assert all(each.source for each in found), [each.with_source for each in found]
    assert any(source in each.source for each in found), [each.with_source for each in found]


PROGRAM = 'aws.ec2.LaunchTemplate("t", instance_type="p7.48xlarge", tags={"a": "b"})'
REFUSED = 'aws.ec2.Vpc("v", cidr_block="10.0.0.0/8")'
ACCEPT = '[[accept]]\ntype = "aws:ec2/vpc:Vpc"\nproperty = "cidrBlock"\nreason = "by AWS Support"\nuntil = 2026-12-31\n'


def test_a_program_with_a_new_machine_passes_with_a_warning(
    engine: Engine, program: Callable[[str], Path]
) -> None:
    report = rehearse(read_project(program(PROGRAM)), engine, RehearsalOptions(until="preview"))
    assert report.ok, report.problems
    (warning,) = report.warnings
    assert "LaunchTemplate t: instanceType: 'p7.48xlarge'" in warning
    assert "botocore" in warning


@pytest.mark.parametrize(("day", "passes"), [(date(2026, 12, 31), True), (date(2027, 1, 1), False)])
def test_a_project_accepts_a_value_until_a_day(
    engine: Engine, program: Callable[[str], Path], day: date, passes: bool
) -> None:
    folder = program(REFUSED)
    (folder / "rehearsal.toml").write_text(ACCEPT)
    with as_of(day):
        report = rehearse(read_project(folder), engine, RehearsalOptions(until="preview"))
    assert report.ok is passes, report.problems
    text = " ".join([*report.warnings, *map(str, report.problems)])
    assert ("by AWS Support" if passes else "accepted until 2026-12-31, which has passed") in text


@pytest.mark.parametrize(
    ("row", "passes"),
    [
        ('type = "aws:ec2/vpc:Vpc"', True),
        ('type = "aws:ec2/subnet:Subnet"', False),
        ('type = "aws:ec2/*"\nvalue = "10.0.0.0/8"', True),
        ('type = "aws:ec2/*"\nvalue = "11.0.0.0/8"', False),
    ],
    ids=["type", "another type", "value", "another value"],
)
def test_a_project_accepts_a_type_or_a_value_of_any_property(
    engine: Engine, program: Callable[[str], Path], row: str, passes: bool
) -> None:
    folder = program(REFUSED)
    (folder / "rehearsal.toml").write_text(f'[[accept]]\n{row}\nreason = "by AWS Support"\n')
    report = rehearse(read_project(folder), engine, RehearsalOptions(until="preview"))
    assert report.ok is passes, report.problems
    assert any("by AWS Support" in warning for warning in report.warnings) is passes


def test_all_mistakes_in_the_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "rehearsal.toml").write_text(
        '[[accept]]\ntyp = "x"\n[[answer]]\nfunction = "f"\n[[stack]]\nname = "s"\n[[akcept]]\n'
        '[[accept]]\ntype = "t"\nreason = "r"\nuntil = "tomorrow"\n'
    )
    with pytest.raises(InputError) as failed:
        accepted.read(tmp_path)
    reported = " | ".join(map(str, failed.value.problems))
    for text in (
        "typ: is not a key",
        "needs `type`",
        "needs `result`",
        "needs either `outputs` or",
        "akcept",
        "not a day",
    ):
        assert text in reported, reported
