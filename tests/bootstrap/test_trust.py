"""Which CI jobs get which identity: a job of the protected branch in the environment applies, a pull request
plans, and nobody else gets anything.
"""

from __future__ import annotations

import pytest

from tests.bootstrap.specs import CLOUDS, spec_of
from tests.bootstrap.tokens import AUDIENCES, Job, accepted
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.bootstrap.trust import trusted

GITHUB, GITLAB = "github", "gitlab"
APPLIES = {
    GITHUB: Job(GITHUB, environment="prod"),
    GITLAB: Job(GITLAB, environment="prod", tier="production"),
}
REFUSED = {
    "another branch": {"ref": "feature", "protected": False},
    "another environment": {"environment": "staging", "tier": "staging", "protected": False},
    "a fork": {"repository": "mallory/platforms", "repository_id": "999"},
    "a repository that took over the name": {"repository_id": "999"},
    "a repository whose name begins with ours": {"repository": "example-org/platforms-x"},
    "an organization whose name ends with ours": {"repository": "an-example-org/platforms"},
    "another issuer": {"issuer": "https://gitlab.example.net"},
    "no environment": {"environment": "", "tier": ""},
}
ONLY_SUBJECT = {("aws", GITLAB), ("azure", GITHUB), ("azure", GITLAB)}
"""Who compares nothing but the subject, which names a repository without its number."""


def identities(cloud: str, spec: BootstrapSpec, job: Job, audience: str = "") -> set[str]:
    expected = audience or AUDIENCES.get(cloud, f"gcp:{job.system}")
    return accepted(cloud, spec, {**job.claims(spec), "aud": expected})


def changed(job: Job, change: dict[str, object]) -> Job:
    values = {**job.__dict__, **change}
    if job.system == GITLAB and "repository" in change:
        values["repository"] = str(change["repository"]).replace("example-org", "example-group")
    return Job(**values)  # type: ignore[arg-type]  # values are those of a Job


@pytest.mark.parametrize("system", [GITHUB, GITLAB])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_job_of_the_branch_in_the_environment_applies(cloud: str, system: str) -> None:
    assert "apply" in identities(cloud, spec_of(cloud), APPLIES[system])


@pytest.mark.parametrize("system", [GITHUB, GITLAB])
@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("why", REFUSED)
def test_nobody_else_applies(cloud: str, system: str, why: str) -> None:
    if why == "a repository that took over the name" and (cloud, system) in ONLY_SUBJECT:
        pytest.skip("only an immutable subject tells them apart: see test_an_immutable_subject")
    assert "apply" not in identities(cloud, spec_of(cloud), changed(APPLIES[system], REFUSED[why]))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_pull_request_plans_and_never_applies(cloud: str) -> None:
    spec = spec_of(cloud)
    assert identities(cloud, spec, Job(GITHUB, pull_request=True)) == {"plan"}
    in_environment = Job(GITHUB, pull_request=True, environment="prod")
    assert "apply" not in identities(cloud, spec, in_environment)


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
@pytest.mark.parametrize("system", [GITHUB, GITLAB])
def test_any_branch_plans(cloud: str, system: str) -> None:
    spec = spec_of(cloud)
    assert identities(cloud, spec, Job(system, ref="feature/x", protected=False)) == {"plan"}


@pytest.mark.parametrize("system", [GITHUB, GITLAB])
def test_on_azure_only_the_protected_branch_plans_without_a_pull_request(system: str) -> None:
    spec = spec_of("azure")
    assert identities("azure", spec, Job(system)) == {"plan"}
    assert identities("azure", spec, Job(system, ref="feature", protected=False)) == set()


@pytest.mark.parametrize("system", [GITHUB, GITLAB])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_token_for_somebody_else_is_refused(cloud: str, system: str) -> None:
    """Its audience is pinned, so that a token for another service cannot be replayed."""
    assert identities(cloud, spec_of(cloud), APPLIES[system], audience="https://example.net") == set()


@pytest.mark.parametrize("system", [GITHUB, GITLAB])
@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("why", ["a fork", "a repository whose name begins with ours", "another issuer"])
def test_a_stranger_does_not_even_plan(cloud: str, system: str, why: str) -> None:
    for job in (APPLIES[system], Job(system), Job(system, pull_request=system == GITHUB)):
        assert identities(cloud, spec_of(cloud), changed(job, REFUSED[why])) == set()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_an_immutable_subject_is_not_that_of_a_new_owner_of_the_name(cloud: str) -> None:
    prefix = "repo:example-org@1234567/platforms@123456789"
    github = spec_of(cloud).github
    assert github is not None
    spec = spec_of(cloud, github=github.model_dump() | {"subject_prefix": prefix}, gitlab=None)
    ours = Job(GITHUB, repository=prefix.removeprefix("repo:"), environment="prod")
    assert "apply" in identities(cloud, spec, ours)
    theirs = Job(GITHUB, repository="example-org@7/platforms@9", environment="prod")
    assert identities(cloud, spec, theirs) == set()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_only_plan_accepts_a_pattern(cloud: str) -> None:
    for trust in trusted(spec_of(cloud)):
        values = [value for claims in trust.apply for value in claims.values()]
        assert not [value for value in values if "*" in value or "?" in value]
        for claims in trust.plan:
            patterns = [value for value in claims.values() if "*" in value]
            assert all(value.index("*") == len(value) - 1 for value in patterns)
            assert all(value.count(":") >= 2 for value in patterns), "names the repository and what of it"
