"""Tokens of CI jobs as GitHub Actions and GitLab CI issue them, and who accepts them on each cloud.

Each evaluator reads what is sent to the cloud (an IAM document, CEL expressions, subjects), not the code's own
idea of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from trainfleet.infra.bootstrap.aws import documents
from trainfleet.infra.bootstrap.azure.conditions import subjects
from trainfleet.infra.bootstrap.gcp.conditions import accepts, subject
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.bootstrap.trust import trusted

AUDIENCES = {"aws": "sts.amazonaws.com", "azure": "api://AzureADTokenExchange"}


@dataclass(frozen=True)
class Job:
    """A job of a repository, and what its CI system writes into a token."""

    system: str
    repository: str = ""
    repository_id: str = ""
    ref: str = "main"
    environment: str = ""
    protected: bool = True
    pull_request: bool = False
    tier: str = ""
    issuer: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    def claims(self, spec: BootstrapSpec) -> dict[str, str]:
        """The claims of its token."""
        made = self._github(spec) if self.system == "github" else self._gitlab(spec)
        return {**made, **self.extra}

    def _github(self, spec: BootstrapSpec) -> dict[str, str]:
        assert spec.github is not None
        repository = self.repository or spec.github.repository
        ref = "refs/pull/7/merge" if self.pull_request else f"refs/heads/{self.ref}"
        if self.environment:
            context = f"environment:{self.environment}"
        else:
            context = "pull_request" if self.pull_request else f"ref:{ref}"
        protected = str(self.protected and not self.pull_request).lower()
        end = f":ref_protected:{protected}" if spec.github.subject == "protected-ref" else ""
        claims = {
            "iss": self.issuer or "https://token.actions.githubusercontent.com",
            "sub": f"repo:{repository}:{context}{end}",
            "repository": repository,
            "repository_id": self.repository_id or spec.github.repository_id,
            "ref": ref,
            "ref_protected": protected,
            "event_name": "pull_request" if self.pull_request else "push",
        }
        return claims | ({"environment": self.environment} if self.environment else {})

    def _gitlab(self, spec: BootstrapSpec) -> dict[str, str]:
        assert spec.gitlab is not None
        project = self.repository or spec.gitlab.project
        protected = str(bool(self.environment) and self.protected).lower() if self.environment else ""
        end = f":environment_protected:{protected}:deployment_tier:{self.tier}"
        claims = {
            "iss": self.issuer or spec.gitlab.url,
            "sub": f"project_path:{project}:ref_type:branch:ref:{self.ref}"
            + (end if spec.gitlab.subject == "environment" else ""),
            "project_path": project,
            "project_id": self.repository_id or spec.gitlab.project_id,
            "ref": self.ref,
            "ref_type": "branch",
            "ref_protected": str(self.protected).lower(),
        }
        if self.environment:
            claims |= {"environment": self.environment, "environment_protected": protected}
        return claims


def accepted(cloud: str, spec: BootstrapSpec, token: Mapping[str, str]) -> set[str]:
    """The identities (`plan`, `apply`) that a cloud gives to a token."""
    return {"aws": _aws, "gcp": _gcp, "azure": _azure}[cloud](spec, token)


def _aws(spec: BootstrapSpec, token: Mapping[str, str]) -> set[str]:
    """IAM: a statement whose provider issued the token and whose conditions all hold."""
    providers = [(each, each.issuer) for each in trusted(spec)]
    return {
        identity
        for identity in ("plan", "apply")
        if any(
            statement["Effect"] == "Allow"
            and statement["Action"] == ["sts:AssumeRoleWithWebIdentity"]
            and statement["Principal"]["Federated"] == token["iss"]
            and _holds(statement["Condition"], token)
            for statement in documents.trust(providers, identity)["Statement"]
        )
    }


def _holds(conditions: Mapping[str, Mapping[str, Any]], token: Mapping[str, str]) -> bool:
    for operator, keys in conditions.items():
        for key, expected in keys.items():
            found = token.get(key.rpartition(":")[2])
            if found is None:
                return False
            if operator == "StringEquals" and found != expected:
                return False
            if operator == "StringLike" and not fnmatchcase(found, expected):
                return False
            assert operator in {"StringEquals", "StringLike"}, operator
    return bool(conditions)


def _gcp(spec: BootstrapSpec, token: Mapping[str, str]) -> set[str]:
    """Workload identity: the provider's condition, then the subject; `apply` may also plan."""
    for trust in trusted(spec):
        if trust.issuer == token["iss"] and token["aud"] == f"gcp:{trust.system}":
            if not _cel(accepts(trust), token):
                return set()
            who = str(_cel(subject(trust), token))
            return {"plan", "apply"} if who == f"{trust.system}-apply" else {"plan"}
    return set()


def _cel(expression: str, token: Mapping[str, str]) -> object:
    """Evaluate the part of CEL that the expressions use. A missing claim that is read is an error."""
    condition, found, cases = expression.partition(" ? ")
    if found:
        yes, _, no = cases.partition(" : ")
        return (yes if _cel(condition, token) else no).strip("'")
    text = re.sub(r"has\(assertion\.(\w+)\)", r"('\1' in claims)", expression)
    text = re.sub(r"assertion\.(\w+)\.startsWith\(", r"claims['\1'].startswith(", text)
    text = re.sub(r"assertion\.(\w+)", r"claims['\1']", text)
    text = text.replace("&&", "and").replace("||", "or")
    return eval(text, {"__builtins__": {}}, {"claims": dict(token)})


def _azure(spec: BootstrapSpec, token: Mapping[str, str]) -> set[str]:
    """Federated credentials: the issuer, the audience and the whole subject."""
    return {
        identity
        for identity in ("plan", "apply")
        for trust in trusted(spec)
        if trust.issuer == token["iss"]
        and token["aud"] == AUDIENCES["azure"]
        and token["sub"] in subjects(trust, identity, spec)
    }
