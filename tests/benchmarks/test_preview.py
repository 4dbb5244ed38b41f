"""The preview benchmark on a small program with the real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import preview
from benchmarks.flat_program import write_program
from trainfleet.errors import TrainfleetError
from trainfleet.rehearsal.engine import process_pool
from trainfleet.rehearsal.engine.find import Engine, find_engine
from trainfleet.rehearsal.engine.sandbox import read_project

PROGRAM = """
import json
import pulumi
import pulumi_aws as aws


class Store(pulumi.ComponentResource):
    def __init__(self, name):
        super().__init__("test:index:Store", name)
        inside = pulumi.ResourceOptions(parent=self)
        self.role = aws.iam.Role(f"{name}-role", assume_role_policy="{}", tags={"owner": "me"}, opts=inside)
        self.bucket = aws.s3.Bucket(f"{name}-bucket", tags={"role": self.role.name}, opts=inside)
        policy = pulumi.Output.all(self.role.arn, self.bucket.arn).apply(
            lambda parts: json.dumps({"Version": "2012-10-17", "Statement": [
                {"Effect": "Allow", "Principal": {"AWS": parts[0]}, "Action": "s3:GetObject",
                 "Resource": f"{parts[1]}/*"}]}))
        aws.s3.BucketPolicy(f"{name}-policy", bucket=self.bucket.id, policy=policy, opts=inside)
        self.register_outputs({})


Store("small")
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the benchmark: no process of an earlier rehearsal, with its imported SDKs, is reused."""
    monkeypatch.setattr(process_pool, "_IDLE", process_pool._Idle())


@pytest.fixture(scope="module")
def engine() -> Engine:
    return find_engine()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "Pulumi.yaml").write_text("name: small\nruntime: python\n")
    (folder / "Pulumi.dev.yaml").write_text("config: {}\n")
    (folder / "__main__.py").write_text(PROGRAM)
    return folder


@pytest.mark.deep
def test_both_programs_are_previewed_alternately(project: Path, engine: Engine, tmp_path: Path) -> None:
    created, config = preview.applied(read_project(project), engine)
    assert config == {}
    assert [resource.name for resource in created] == ["small-role", "small-bucket", "small-policy"]
    write_program(tmp_path / "flat", created)
    structured, flat = preview.interleaved(
        read_project(project), read_project(tmp_path / "flat"), engine, rounds=2
    )
    assert len(structured.seconds) == len(flat.seconds) == 2
    assert all(seconds > 0 for seconds in structured.seconds + flat.seconds)
    assert structured.memory > 20 < flat.memory
    assert structured.modules == flat.modules
    assert {"pulumi_aws.iam", "pulumi_aws.s3"} <= structured.modules
    assert {name.split(".")[0] for name in structured.modules} == {"pulumi_aws"}

    (tmp_path / "flat" / "everything.py").write_text(
        (tmp_path / "flat" / "everything.py").read_text().replace("'owner': 'me'", "'owner': 'you'")
    )
    with pytest.raises(TrainfleetError, match="plans other resources: aws:iam/role:Role small-role"):
        preview.interleaved(read_project(project), read_project(tmp_path / "flat"), engine, rounds=1)


OTHER_CLOUDS = {
    "gcp": (
        "gcp",
        'n = gcp.compute.Network("net")\n'
        'gcp.compute.Subnetwork("s", network=n.id, ip_cidr_range="10.0.0.0/20")\n',
        {"gcp:project": "my-project", "gcp:region": "europe-west4"},
    ),
    "azure": (
        "azure_native",
        'g = azure_native.resources.ResourceGroup("rg")\n'
        'w = azure_native.managedidentity.UserAssignedIdentity("w", resource_group_name=g.name)\n'
        "azure_native.managedidentity.FederatedIdentityCredential(\n"
        '  "f", resource_group_name=g.name, resource_name_=w.name, issuer="https://i.example/a",\n'
        '  subject="system:serviceaccount:a:b", audiences=["api://AzureADTokenExchange"])\n',
        {
            "azure-native:subscriptionId": "22222222-1111-2222-3333-444444444444",
            "azure-native:location": "westeurope",
        },
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("cloud", sorted(OTHER_CLOUDS))
def test_a_flat_program_of_another_cloud_is_the_same_platform_with_the_same_settings(
    project: Path, engine: Engine, tmp_path: Path, cloud: str
) -> None:
    module, code, config = OTHER_CLOUDS[cloud]
    (project / "__main__.py").write_text(f"import pulumi_{module} as {module}\n{code}")
    (project / "Pulumi.dev.yaml").write_text(json.dumps({"config": config}))
    created, found = preview.applied(read_project(project), engine)
    assert found == config
    write_program(tmp_path / "flat", created, found)
    structured, flat = preview.interleaved(
        read_project(project), read_project(tmp_path / "flat"), engine, rounds=1
    )
    assert structured.modules == flat.modules
    assert {name.split(".")[0] for name in structured.modules} == {f"pulumi_{module}"}


def test_a_program_that_fails_is_an_error(project: Path, engine: Engine) -> None:
    (project / "__main__.py").write_text("import pulumi_aws as aws\naws.s3.Bucket('small', tagz={})\n")
    with pytest.raises(TrainfleetError, match="tagz"):
        preview.applied(read_project(project), engine)


def test_figures_are_medians_and_ratios() -> None:
    assert preview.figures([3.0, 1.0, 2.0]) == {
        "median": 2.0,
        "least": 1.0,
        "most": 3.0,
        "all": [3.0, 1.0, 2.0],
    }
    assert preview.ratio([2.0, 4.0, 3.0], [1.0, 4.0, 2.0]) == {"of medians": 1.5, "median of rounds": 1.5}


def test_the_table_has_every_figure_and_its_target(capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "date": "2026-11-21",
        "machine": preview.machine(),
        "versions": {"python": "3.11.7"},
        "stacks": {
            "aws-prod": {
                "resources": 3,
                "structured": preview.figures([2.2]),
                "flat": preview.figures([2.0]),
                "ratio": preview.ratio([2.2], [2.0]),
                "memory": {"structured": 110.0, "flat": 100.0, "ratio": 1.1},
                "modules": {"count": 7, "not in the flat program": ["pulumi_aws.glue"]},
            }
        },
        "commands": {"trainfleet --help": preview.figures([0.31])},
        "targets": preview.TARGETS,
    }
    preview.show(document)
    output = capsys.readouterr().out
    assert "| aws-prod: ratio, of medians | 1.100 | | | | <= 1.15 |" in output
    assert "| aws-prod | 110.0 | 100.0 | 1.100 | <= 1.15 | 7 | pulumi_aws.glue |" in output
    assert "| trainfleet --help | 0.31 | 0.31 | 0.31 | 1 | <= 0.4 s |" in output
    assert str(document["machine"]["cpu"]) in output  # type: ignore[index] # a document, read as JSON is
    json.dumps(document)
