"""BootstrapSpec: the input of the bootstrap program, `trainfleet:bootstrap` in a stack file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from trainfleet.errors import InputError, Problem
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.part import Email, Name, Part, Range
from trainfleet.pydantic_messages import explain

BOOTSTRAP_KEY = "trainfleet:bootstrap"
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name without a colon, a slash or a wildcard: the subject of a token joins names with colons."""
Branch = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
Id = Annotated[str, Field(pattern=r"^[0-9]+$")]


PEOPLE: dict[Cloud, tuple[re.Pattern[str], str]] = {
    Cloud.AWS: (
        re.compile(r"arn:[a-z-]+:iam::\d{12}:(user|role)/[\w+=,.@/-]+"),
        "arn:aws:iam::111122223333:user/alice",
    ),
    Cloud.GCP: (re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+"), "alice@example.com"),
    Cloud.AZURE: (
        re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        "an object id such as 00000000-0000-0000-0000-000000000001",
    ),
}
"""How a cloud names a person: the pattern, and an example."""


class GitHub(Part):
    """The GitHub repository whose workflows may plan and apply."""

    repository: str = Field(pattern=r"^[A-Za-z0-9-]+/[A-Za-z0-9._-]+$", examples=["example-org/platforms"])
    """Owner and name."""
    repository_id: Id = Field(examples=["123456789"])
    """`gh api repos/OWNER/NAME --jq .id`. Another repository never gets the same id, unlike the name."""
    subject_prefix: str = Field(
        "",
        pattern=r"^(repo:[A-Za-z0-9-]+([@-][0-9]+)?/[A-Za-z0-9._-]+([@-][0-9]+)?)?$",
        examples=["repo:example-org@1234567/platforms@123456789"],
    )
    """How subjects of the repository's tokens begin, where it has immutable subjects (repositories created or
    renamed after 2026-06-18). Empty = repo:OWNER/NAME.
    """
    branch: Branch = "main"
    """The protected branch from which stacks are applied."""
    environments: tuple[Word, ...] = Field(("production",), min_length=1, examples=[["dev", "prod"]])
    """The environments of which a job must use one to apply. `trainfleet init` generates workflows with one per
    stack, of the stack's name. Their reviewers and branch rules are set in GitHub.
    """
    subject: Literal["default", "protected-ref"] = "default"
    """default: GitHub's own subject. protected-ref: the repository adds the claim `ref_protected` to it,
    which azure requires, because it compares nothing but the subject (docs/bootstrap.md).
    """
    existing_provider: str = Field("", pattern=r"^(arn:[a-z-]+:iam::\d{12}:oidc-provider/\S+)?$")
    """aws: ARN of the account's OIDC provider for GitHub, if there is one. Empty = create it."""

    @property
    def prefix(self) -> str:
        """How each subject begins."""
        return self.subject_prefix or f"repo:{self.repository}"


class GitLab(Part):
    """The GitLab project whose pipelines may plan and apply."""

    project: str = Field(
        pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+$", examples=["example-group/platforms"]
    )
    """Group and name."""
    project_id: Id = Field(examples=["12345678"])
    """Its number, shown under its name."""
    url: str = Field("https://gitlab.com", pattern=r"^https://[a-z0-9.-]+$")
    """Address of the GitLab instance."""
    branch: Branch = "main"
    """The protected branch from which stacks are applied."""
    environments: tuple[Word, ...] = Field(("production",), min_length=1, examples=[["dev", "prod"]])
    """The protected environments of which a job must use one to apply; their deployment tier is production."""
    subject: Literal["default", "environment"] = "default"
    """default: GitLab's own subject. environment: the project adds the claims `environment_protected` and
    `deployment_tier` to it, which aws and azure require, because they see no other claim (docs/bootstrap.md).
    """
    existing_provider: str = Field("", pattern=r"^(arn:[a-z-]+:iam::\d{12}:oidc-provider/\S+)?$")
    """aws: ARN of the account's OIDC provider for this instance, if there is one. Empty = create it."""


class BreakGlass(Part):
    """Who may apply when CI cannot, and who gets a message when somebody does."""

    people: tuple[str, ...] = Field(min_length=1)
    """Named people: ARNs of IAM users or roles (aws), e-mail addresses (gcp), object ids of users (azure)."""
    alert: tuple[Email, ...] = Field(min_length=1)
    """E-mail addresses that get a message each time."""


class BootstrapSpec(Part):
    """What CI needs in one account: the whole input of a bootstrap stack."""

    name: Name = Field("ci", examples=["ci"])
    """First part of the name of every resource."""
    cloud: Literal[Cloud.AWS, Cloud.GCP, Cloud.AZURE]
    """The cloud of the account."""
    region: str = Field(min_length=1, examples=["us-east-2"])
    """Region of the state bucket and of the keys."""
    account: str = Field(min_length=1, examples=["111122223333"])
    """The account id (aws), project id (gcp) or subscription id (azure)."""
    owner: Email = Field(examples=["ml-platform@example.com"])
    """E-mail address of the team that owns the account."""
    platforms: tuple[Name, ...] = Field(min_length=1, examples=[["prod", "dev"]])
    """Names of the platforms that CI applies. Permissions are limited to them where a cloud can."""
    options: tuple[Literal["hyperpod", "network-hub", "placement-group"], ...] = ()
    """What the platforms use beyond the stacks of this project; each adds permissions."""
    github: GitHub | None = None
    """The GitHub repository. Default: none."""
    gitlab: GitLab | None = None
    """The GitLab project. Default: none."""
    break_glass: BreakGlass
    permission_boundary: str = Field("", pattern=r"^(arn:[a-z-]+:iam::\d{12}:policy/\S+)?$")
    """aws: ARN of a policy that must bound every role that CI creates: `identities.permission_boundary` of
    the platforms. Default: none.
    """
    public_ranges: tuple[Range, ...] = ()
    """azure: public ranges from which runners and people reach the state and its keys."""
    retention_days: int = Field(90, ge=14, le=90)
    """Days within which an overwritten or deleted state can be restored."""
    tags: dict[str, str] = {}
    """Additional tags of every resource."""

    @property
    def environment(self) -> str:
        """The environment in tags. State and keys of an account are always production."""
        return "prod"

    @property
    def production(self) -> bool:
        """State and keys are always protected, and kept on destroy."""
        return True


def parse_bootstrap(data: Mapping[str, Any], source: str = "") -> BootstrapSpec:
    """Validate a bootstrap spec.

    Args:
        data: the value of `trainfleet:bootstrap`.
        source: printed before each mistake, for example a file.

    Raises:
        InputError: with every mistake.
    """
    try:
        spec = BootstrapSpec.model_validate(dict(data))
    except ValidationError as error:
        describe()
        problems = [explain(each, BootstrapSpec) for each in error.errors(include_url=False)]
    else:
        problems = list(_rules(spec))
    if not problems:
        return spec
    located = [Problem(f"{source} {each.where}".strip(), each.what, each.fix) for each in problems]
    count = "1 mistake" if len(located) == 1 else f"{len(located)} mistakes"
    raise InputError(f"the bootstrap spec has {count}", located)


def describe() -> None:
    """Use the docstrings of the fields as their descriptions, for messages and editors."""
    from trainfleet.infra.spec.field_docs import describe_fields

    describe_fields((sys.modules[__name__],))


def _rules(spec: BootstrapSpec) -> Iterator[Problem]:
    if spec.github is None and spec.gitlab is None:
        yield Problem(
            "github", "no CI system is named, so nobody could plan or apply", "add github or gitlab"
        )
    if spec.github and spec.cloud is Cloud.AZURE and spec.github.subject != "protected-ref":
        yield Problem(
            "github.subject",
            "Azure compares only the subject, and the default one of an environment names no branch",
            "set subject: protected-ref, and the repository's subject claims as docs/bootstrap.md shows",
        )
    if spec.gitlab and spec.cloud is not Cloud.GCP and spec.gitlab.subject != "environment":
        yield Problem(
            "gitlab.subject",
            f"{spec.cloud} compares only the subject, and the default one names no environment",
            "set subject: environment, and the project's subject claims as docs/bootstrap.md shows",
        )
    for index, platform in enumerate(spec.platforms):
        if spec.name == platform or spec.name.startswith(f"{platform}-"):
            yield Problem(
                f"platforms[{index}]",
                f"resources of `{platform}` look like those of the bootstrap `{spec.name}`, "
                "so CI could change its own permissions",
                "give the bootstrap another name",
            )
    yield from _only_on(spec)
    if spec.cloud is Cloud.AZURE and not spec.public_ranges:
        yield Problem(
            "public_ranges", "is empty, so neither runners nor people reach the state", "list their ranges"
        )
    pattern, example = PEOPLE[spec.cloud]
    for index, who in enumerate(spec.break_glass.people):
        if not pattern.fullmatch(who):
            yield Problem(f"break_glass.people[{index}]", f"`{who}` names nobody on {spec.cloud}", example)


def _only_on(spec: BootstrapSpec) -> Iterator[Problem]:
    """Options that only one cloud has."""
    aws_only = {
        "permission_boundary": spec.permission_boundary,
        "github.existing_provider": spec.github.existing_provider if spec.github else "",
        "gitlab.existing_provider": spec.gitlab.existing_provider if spec.gitlab else "",
    }
    for where, value in aws_only.items():
        if value and spec.cloud is not Cloud.AWS:
            yield Problem(where, f"is an option of aws, and the account is on {spec.cloud}", "remove it")
    for option in ("hyperpod", "placement-group"):
        if option in spec.options and spec.cloud is not Cloud.AWS:
            yield Problem("options", f"`{option}` is an option of aws, not of {spec.cloud}", "remove it")
    if spec.public_ranges and spec.cloud is not Cloud.AZURE:
        yield Problem(
            "public_ranges", f"is an option of azure; {spec.cloud} closes the state by identity", "remove it"
        )
