"""A repository of `trainfleet init` on a code host of this machine, with simulated clouds behind its workflows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ci.clouds import Clouds, clouds
from tests.ci.forge import REPOSITORY, Forge
from tests.ci.runner import Host
from trainfleet.infra.outputs.contract import partly_known

STACKS = ("dev", "prod")
PROGRAM = '''"""A small program in place of the platform: the workflows do not depend on what is in a stack."""

import json

import pulumi
import pulumi_aws as aws

STACK = pulumi.get_stack()
TAGS = {"trainfleet:platform": "acme", "trainfleet:environment": STACK, "trainfleet:owner": "ml"}
KEY = "arn:aws:kms:us-east-2:111122223333:key/11111111-2222-3333-4444-555555555555"
for name in ("audit", "access"):
    aws.cloudwatch.LogGroup(
        f"acme-{name}", name=f"{STACK}-{name}", retention_in_days=365, kms_key_id=KEY, tags=TAGS
    )
pulumi.export("platform", json.loads("""CONTRACT"""))
pulumi.export("other", pulumi.Output.secret("of-the-program"))
'''


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Clouds]:
    """The clouds and the state, both empty."""
    with clouds(tmp_path) as found:
        yield found


@pytest.fixture
def host(simulated: Clouds, tmp_path: Path) -> Host:
    """The repository, set up as docs/continuous-delivery.md says, before its first apply."""
    folder = tmp_path / "clone"
    answers = ("--cloud", "aws", "--name", "acme", "--owner", "ml@example.com")
    subprocess.run(
        [sys.executable, "-m", "trainfleet", "init", folder, *answers], check=True, capture_output=True
    )
    contract = partly_known("acme", "aws", bucket_url="s3://runs/platform", namespace="training")
    (folder / "stacks" / "__main__.py").write_text(PROGRAM.replace("CONTRACT", contract.model_dump_json()))
    tools = tmp_path / "tools"
    tools.mkdir()
    simulated.write_pulumi(tools)
    environment = os.environ | simulated.store.environment(simulated.store.port)
    environment |= {"HOME": str(tools), "PATH": f"{tools}:{os.environ['PATH']}"}
    for command in (["login", simulated.state_url], *(["stack", "init", stack] for stack in STACKS)):
        subprocess.run(
            [tools / "pulumi", *command], cwd=folder, env=environment, check=True, capture_output=True
        )
    forge = Forge(tmp_path, folder)
    simulated.trust = {"plan": f"repo:{REPOSITORY}:ref:refs/heads/main"}
    variables = {"": {"STATE_URL": simulated.state_url, "PLAN_IDENTITY": "plan", "SMOKE_TRAINING": "no"}}
    for stack in STACKS:
        simulated.trust[f"apply-{stack}"] = f"repo:{REPOSITORY}:environment:{stack}"
        variables[stack] = {"APPLY_IDENTITY": f"apply-{stack}"}
    return Host(forge, simulated, tmp_path, variables)


def log_groups(found: Clouds) -> set[str]:
    """The names of the log groups that exist in the simulated cloud."""
    return {
        str(record.outputs["name"])
        for record in found.cloud.records.values()
        if record.token == "aws:cloudwatch/logGroup:LogGroup"
    }


def as_text(document: object) -> str:
    """A document in a message."""
    return json.dumps(document, indent=1, default=str)
