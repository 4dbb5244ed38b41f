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
from tests.ci.gitlab import GitLab, Variable
from tests.ci.gitlab_services import ROLE, Services, serve
from tests.ci.runner import Host
from trainfleet.infra.bootstrap.schema import parse_bootstrap
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
pulumi.export("platform", json.loads(r"""CONTRACT"""))
pulumi.export("other", pulumi.Output.secret("of-the-program"))
'''


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Clouds]:
    """The clouds and the state, both empty."""
    with clouds(tmp_path) as found:
        yield found


def write_small_program(folder: Path, **known: object) -> None:
    """Put two log groups in place of the platform: it makes a cycle fast. `known` is in its outputs."""
    known = {"namespace": "training", **known}
    contract = partly_known("acme", "aws", bucket_url="s3://runs/platform", **known)
    (folder / "stacks" / "__main__.py").write_text(PROGRAM.replace("CONTRACT", contract.model_dump_json()))


def pulumi(found: Clouds, clone: Path, *arguments: str) -> str:
    """Run a command of the engine as a person with the credentials of the state; return what it prints."""
    tools = clone.parent / "tools"
    environment = os.environ | found.store.environment(found.store.port)
    environment |= {"HOME": str(tools), "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        [tools / "pulumi", *arguments],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def repository(found: Clouds, folder: Path, *options: str) -> Path:
    """Run `trainfleet init` and create the stacks in the state, as docs/continuous-delivery.md says."""
    clone = folder / "clone"
    cloud = () if "--cloud" in options else ("--cloud", "aws")
    answers = (*cloud, "--name", "acme", "--owner", "ml@example.com", *options)
    subprocess.run(
        [sys.executable, "-m", "trainfleet", "init", clone, *answers], check=True, capture_output=True
    )
    found.write_pulumi(folder / "tools")
    pulumi(found, clone, "login", found.state_url)
    for stack in STACKS:
        pulumi(found, clone, "stack", "init", stack)
    return clone


def on_github(found: Clouds, folder: Path, clone: Path) -> Host:
    """Push the repository to the code host, and set what the workflows need."""
    forge = Forge(folder, clone)
    found.trust = {"plan": f"repo:{REPOSITORY}:ref:refs/heads/main"}
    variables = {"": {"STATE_URL": found.state_url, "PLAN_IDENTITY": "plan", "SMOKE_TRAINING": "no"}}
    for stack in STACKS:
        found.trust[f"apply-{stack}"] = f"repo:{REPOSITORY}:environment:{stack}"
        variables[stack] = {"APPLY_IDENTITY": f"apply-{stack}"}
    return Host(forge, found, folder, variables)


GITLAB_SPEC = {
    "cloud": "aws",
    "region": "us-east-1",
    "account": "111122223333",
    "owner": "ml@example.com",
    "platforms": ["acme-dev", "acme-prod"],
    "gitlab": {
        "project": REPOSITORY, "project_id": "12345678", "environments": ["dev", "prod"], "subject": "environment"
    },
    "break_glass": {"people": ["arn:aws:iam::111122223333:user/ada"], "alert": ["ml@example.com"]},
}  # fmt: skip
"""The bootstrap whose roles the jobs of GitLab assume."""


@pytest.fixture
def gitlab(simulated: Clouds, tmp_path: Path) -> Iterator[GitLab]:
    """A project on GitLab with a small program, before its first apply."""
    clone = repository(simulated, tmp_path, "--ci", "gitlab", "--region", "us-east-1")
    write_small_program(clone)
    forge = Forge(tmp_path, clone)
    services = Services(simulated, parse_bootstrap(GITLAB_SPEC), forge.data, "issues-token")
    variables = {
        "STATE_URL": [Variable(simulated.state_url_of_bootstrap)],
        "PLAN_IDENTITY": [Variable(f"{ROLE}plan")],
        "APPLY_IDENTITY": [Variable(f"{ROLE}apply", stack) for stack in STACKS],
        "SMOKE_TRAINING": [Variable("no")],
        "REVIEW_TOKEN": [Variable("review-token", "review", protected=False)],
        "ISSUES_TOKEN": [Variable("issues-token", "issues")],
        "UPDATE_TOKEN": [Variable("update-token", "update")],
    }
    with serve(services):
        yield GitLab(forge, services, tmp_path, variables)


@pytest.fixture
def host(simulated: Clouds, tmp_path: Path) -> Host:
    """The repository with a small program, before its first apply."""
    clone = repository(simulated, tmp_path)
    write_small_program(clone)
    return on_github(simulated, tmp_path, clone)


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
