"""Which tokens of a CI system are accepted for which identity, independent of the cloud that compares them.

A rule is a set of claims with the values that a token must have. A value that ends in `*` accepts every value
that begins so; only rules of `plan` have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainfleet.infra.bootstrap.schema import BootstrapSpec, GitHub, GitLab

GITHUB_ISSUER = "https://token.actions.githubusercontent.com"
Claims = Mapping[str, str]


@dataclass(frozen=True)
class Trust:
    """What is trusted of one CI system.

    Attributes:
        system: `github` or `gitlab`.
        issuer: URL of the token's issuer.
        apply: what a token must claim to apply: repository, branch and environment; one of these is enough.
        plan: what it must claim to plan; one of these is enough.
    """

    system: str
    issuer: str
    apply: tuple[Claims, ...]
    plan: tuple[Claims, ...]

    @property
    def host(self) -> str:
        """The issuer without its scheme, as AWS writes it."""
        return self.issuer.removeprefix("https://")


def trusted(spec: BootstrapSpec) -> tuple[Trust, ...]:
    """The CI systems that a spec names."""
    found = []
    if spec.github:
        found.append(github(spec.github))
    if spec.gitlab:
        found.append(gitlab(spec.gitlab))
    return tuple(found)


def github(repository: GitHub) -> Trust:
    """Workflows of a repository (GitHub documentation, OpenID Connect reference).

    NOTE: a token of a pull request from a fork would have the same subject. GitHub gives such a workflow no
    permission to request one, unless the repository's settings send write tokens to forks.
    """
    prefix, ids = repository.prefix, {"repository_id": repository.repository_id}
    protected = repository.subject == "protected-ref"
    apply_end, pull_request_end = (":ref_protected:true", ":ref_protected:false") if protected else ("", "")
    return Trust(
        "github",
        GITHUB_ISSUER,
        tuple(
            {
                "sub": f"{prefix}:environment:{environment}{apply_end}",
                "ref": f"refs/heads/{repository.branch}",
                "environment": environment,
                **ids,
            }
            for environment in repository.environments
        ),
        (
            {"sub": f"{prefix}:pull_request{pull_request_end}", **ids},
            {"sub": f"{prefix}:ref:refs/heads/*", **ids},
        ),
    )


def gitlab(project: GitLab) -> Trust:
    """Pipelines of a project (GitLab documentation, ID token authentication). A pipeline of a merge request
    from a fork has the fork's path.
    """
    branch = f"project_path:{project.project}:ref_type:branch:ref:"
    extended = project.subject == "environment"
    end = ":environment_protected:true:deployment_tier:production" if extended else ""
    ids = {"project_id": project.project_id}
    return Trust(
        "gitlab",
        project.url,
        tuple(
            {
                "sub": f"{branch}{project.branch}{end}",
                "ref": project.branch,
                "ref_type": "branch",
                "ref_protected": "true",
                "environment": environment,
                "environment_protected": "true",
                **ids,
            }
            for environment in project.environments
        ),
        ({"sub": f"{branch}*", **ids},),
    )
