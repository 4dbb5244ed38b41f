"""What a new repository is made for: cloud, names, region and CI system."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from trainfleet.errors import InputError, Problem

CI_SYSTEMS = ("github", "gitlab", "none")
LONGEST_NAME = 19
"""A platform's name has at most 24 characters, and `-prod` is appended."""


class CloudDefaults(NamedTuple):
    """What differs between the clouds in a new repository."""

    title: str
    region: str
    account: str
    """What the account is called; empty: not asked for."""
    account_example: str
    account_required: bool
    admin: str
    """What an administrator of a production cluster is called; empty: not asked for."""
    admin_example: str


CLOUDS: Mapping[str, CloudDefaults] = {
    "aws": CloudDefaults(
        "AWS", "us-east-2", "account id", "111122223333", False,
        "ARN of the IAM role", "arn:aws:iam::111122223333:role/platform-admin",
    ),
    "gcp": CloudDefaults(
        "Google Cloud", "us-central1", "project id", "my-project-123456", True,
        "e-mail address", "platform-admin@example.com",
    ),
    "azure": CloudDefaults(
        "Azure", "eastus", "subscription id", "11111111-2222-3333-4444-555555555555", True,
        "id of the Entra group", "aaaaaaaa-0000-4000-8000-000000000001",
    ),
    "local": CloudDefaults("an existing Kubernetes cluster", "", "", "", False, "", ""),
}  # fmt: skip


@dataclass(frozen=True)
class Answers:
    """The validated answers; `.trainfleet-init.json` keeps them for an upgrade."""

    name: str
    cloud: str
    owner: str
    region: str = ""
    account: str = ""
    admin: str = ""
    public_range: str = ""
    ci: str = "github"

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks of the repository, in the order in which they are applied."""
        return ("local",) if self.cloud == "local" else ("dev", "prod")

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Answers:
        """Restore answers; keys of another version are ignored."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: str(value) for name, value in document.items() if name in names})


def complete(given: Mapping[str, str]) -> Answers:
    """Return the answers with defaults for what is not given.

    Raises:
        InputError: lists every missing or invalid answer. Settings of the platform are validated later, with
            the rendered stacks.
    """
    problems = list(_problems(given))
    if problems:
        raise InputError("these answers are missing or not valid", problems)
    cloud = given["cloud"]
    return Answers.from_json(
        {"region": CLOUDS[cloud].region, **{key: text for key, text in given.items() if text}}
    )


def _problems(given: Mapping[str, str]) -> Iterable[Problem]:
    name, cloud, ci = given.get("name", ""), given.get("cloud", ""), given.get("ci") or "github"
    if not re.fullmatch(rf"[a-z][a-z0-9-]{{0,{LONGEST_NAME - 2}}}[a-z0-9]", name):
        yield Problem(
            "--name",
            f"is `{name}`" if name else "is missing",
            f"2 to {LONGEST_NAME} lower case letters, digits and hyphens, starting with a letter",
        )
    if not re.fullmatch(r"[^@\s]+@[^@\s]+", given.get("owner", "")):
        yield Problem("--owner", "is missing or not an e-mail address", "the team that owns the platform")
    if ci not in CI_SYSTEMS:
        yield Problem("--ci", f"is `{ci}`", f"one of {', '.join(CI_SYSTEMS)}")
    if cloud not in CLOUDS:
        what = f"is `{cloud}`" if cloud else "is missing"
        yield Problem("--cloud", what, f"one of {', '.join(CLOUDS)}")
        return
    defaults = CLOUDS[cloud]
    if defaults.account_required and not given.get("account"):
        what = f"is missing: the {defaults.account} of {defaults.title}"
        yield Problem("--account", what, f"for example {defaults.account_example}")
    unused = (
        []
        if defaults.region
        else [key for key in ("region", "account", "admin", "public_range") if given.get(key)]
    )
    for key in unused:
        yield Problem(f"--{key.replace('_', '-')}", f"has no effect with `--cloud {cloud}`", "omit it")
