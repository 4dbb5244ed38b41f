"""The sessions of jobs that log in to a cloud last as long as the jobs may run, and their roles permit that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime import mocks

from tests.bootstrap.specs import spec_of
from tests.init import test_gitlab, test_workflows
from trainfleet.infra.bootstrap.aws.build import build

SDK_SESSION_S = 3600
"""What STS gives if nothing is asked for (AssumeRoleWithWebIdentity, DurationSeconds), as the SDKs do."""


class _Roles(mocks.Mocks):
    def __init__(self) -> None:
        self.longest: dict[str, int] = {}

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        if args.typ == "aws:iam/role:Role":
            self.longest[args.name.partition("-")[2]] = int(args.inputs["maxSessionDuration"])
        return f"{args.name}-id", {"bucket": args.name, **args.inputs, "arn": f"arn:{args.name}"}

    def call(self, args: mocks.MockCallArgs) -> dict[str, Any]:
        return {"accountId": "111122223333"}


@pytest.fixture(scope="module")
def longest() -> dict[str, int]:
    """Seconds for which the bootstrap lets each role be assumed at most."""
    found = _Roles()
    asyncio.set_event_loop(asyncio.new_event_loop())
    mocks.set_mocks(found, project="bootstrap", stack="test")

    @pulumi.runtime.test
    def program() -> None:
        build(spec_of("aws"))

    program()
    assert found.longest.keys() >= {"plan", "apply"}
    return found.longest


def github_jobs(cloud: str) -> Iterator[tuple[str, int, str, dict[str, Any]]]:
    """Each job that logs in: its name, its limit in seconds, its role, and what it gives to `connect`."""
    for file, text in test_workflows.workflows(cloud).items():
        for name, job in test_workflows.jobs(text).items():
            for step in test_workflows.steps(job):
                if step.get("uses") == "./.github/actions/connect":
                    role = "apply" if "APPLY_IDENTITY" in step["with"]["identity"] else "plan"
                    yield f"{file}: {name}", int(job["timeout-minutes"]) * 60, role, step["with"]


def test_a_session_on_github_lasts_as_long_as_the_job_and_its_role_permits_it(
    longest: dict[str, int],
) -> None:
    found = list(github_jobs("aws"))
    assert len(found) == 4  # plan, apply, continue, drift
    for name, limit, role, given in found:
        assert limit <= given["session-seconds"] <= longest[role] <= 12 * 3600, name
    for role in ("plan", "apply"):  # no longer than a job needs
        assert longest[role] == max(limit for _, limit, other, _ in found if other == role)
    action = yaml.safe_load(test_workflows.generated("aws")[".github/actions/connect/action.yml"])
    (login,) = [step for step in action["runs"]["steps"] if "configure-aws" in step.get("uses", "")]
    assert login["with"]["role-duration-seconds"] == "${{ inputs.session-seconds }}"


def test_a_session_on_gitlab_is_renewed_with_a_token_that_lasts_as_long_as_the_job(
    longest: dict[str, int],
) -> None:
    found = {name: job for name, job in test_gitlab.jobs("aws").items() if "id_tokens" in job}
    assert len(found) == 8
    for name, job in found.items():
        count, unit = job[
            "timeout"
        ].split()  # GitLab's token ends with the job; without a limit, in 5 minutes
        assert unit.startswith("hour"), name
        assert int(count) * 3600 <= longest["apply" if "APPLY" in job["variables"]["IDENTITY"] else "plan"]
        script = "\n".join(job["before_script"])
        assert "AWS_WEB_IDENTITY_TOKEN_FILE" in script  # the SDK exchanges it again when a session ends
        assert "AWS_SESSION_TOKEN" not in script
    assert min(longest["plan"], longest["apply"]) >= SDK_SESSION_S


@pytest.mark.parametrize("cloud", ["gcp", "azure"])
def test_every_job_with_an_identity_has_a_limit(cloud: str) -> None:
    assert [name for name, *_ in github_jobs(cloud)]
    for name, job in test_gitlab.jobs(cloud).items():
        assert "id_tokens" not in job or job["timeout"], name
