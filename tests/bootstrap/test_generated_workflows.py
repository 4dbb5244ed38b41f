"""The identities of a bootstrap accept the jobs of the workflows that `trainfleet init` generates, and each job gets
no more than it is for.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.bootstrap.specs import CLOUDS, document, spec_of
from tests.bootstrap.tokens import AUDIENCES, Job, accepted
from tests.init.test_init import answers
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.init.render import render
from trainfleet.init.requirement import Requirement

STACKS = ("dev", "prod")


def spec(cloud: str, system: str) -> BootstrapSpec:
    """The spec of the repository: an environment per stack."""
    return spec_of(cloud, **{system: {**document(cloud)[system], "environments": list(STACKS)}})


def identities(cloud: str, found: BootstrapSpec, job: Job, audience: str = "") -> set[str]:
    asked = audience or AUDIENCES.get(cloud, f"gcp:{job.system}")
    return accepted(cloud, found, {**job.claims(found), "aud": asked})


@pytest.mark.parametrize("cloud", CLOUDS)
def test_github_jobs_get_the_identity_whose_variable_they_read(cloud: str) -> None:
    files = render(answers(cloud), Requirement())
    calls: dict[str, Any] = yaml.safe_load(files[".github/workflows/apply.yml"])["jobs"]
    stacks = [each["with"]["stack"] for each in calls.values() if "with" in each]
    assert stacks == list(STACKS)
    jobs: dict[str, Any] = yaml.safe_load(files[".github/workflows/apply-stack.yml"])["jobs"]
    for stack in stacks:
        for name, identity in (("plan", "PLAN_IDENTITY"), ("apply", "APPLY_IDENTITY")):
            environment = str(jobs[name].get("environment", "")).replace("${{ inputs.stack }}", stack)
            assert f"vars.{identity}" in yaml.safe_dump(jobs[name]["steps"])
            got = identities(cloud, spec(cloud, "github"), Job("github", environment=environment))
            assert name in got
            assert ("apply" in got) == (name == "apply")


@pytest.mark.parametrize("cloud", CLOUDS)
def test_gitlab_jobs_get_the_identity_whose_variable_they_read(cloud: str) -> None:
    files = render(answers(cloud, "gitlab"), Requirement())
    jobs: dict[str, Any] = yaml.safe_load(files[".gitlab/apply.yml"])
    token = jobs[".connect"]["id_tokens"]["CLOUD_TOKEN"]["aud"]
    audience = "" if cloud == "gcp" else token
    assert cloud != "gcp" or token == "https://iam.googleapis.com/$IDENTITY_PROVIDER"
    for stack in STACKS:
        for name in ("plan", "apply", "continue"):
            environment = jobs[f"{name}-{stack}"].get("environment", {})
            job = Job(
                "gitlab",
                environment=environment.get("name", ""),
                tier=environment.get("deployment_tier", ""),
            )
            got = identities(cloud, spec(cloud, "gitlab"), job, audience)
            assert ("apply" in got) == (name != "plan"), (name, stack)
            assert name != "plan" or "plan" in got
