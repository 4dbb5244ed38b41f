"""The bootstrap in a new repository: it is valid, belongs to the repository's platforms, and sets what CI reads."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.init.test_init import answers
from trainfleet.infra.bootstrap.schema import BOOTSTRAP_KEY, BootstrapSpec, parse_bootstrap
from trainfleet.infra.spec.stack_file import PLATFORM_KEY
from trainfleet.init.render import BOOTSTRAP_STACK, render
from trainfleet.init.requirement import Requirement

CLOUDS = ("aws", "gcp", "azure")
EVERY = [(cloud, ci) for cloud in CLOUDS for ci in ("github", "gitlab")]
OPTIONAL = {"CONTRACTS_URL", "SMOKE_TRAINING"}


def config(files: dict[str, str], name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files[name])["config"]
    return found


def spec(files: dict[str, str]) -> BootstrapSpec:
    return parse_bootstrap(config(files, BOOTSTRAP_STACK)[BOOTSTRAP_KEY], BOOTSTRAP_STACK)


@pytest.mark.parametrize(("cloud", "ci"), EVERY)
def test_it_is_for_the_platforms_and_environments_of_the_repository(cloud: str, ci: str) -> None:
    given = answers(cloud, ci)
    files = render(given, Requirement())
    made = spec(files)
    stacks = {name: f"stacks/Pulumi.{name}.yaml" for name in given.stacks}
    platforms = {config(files, file)[PLATFORM_KEY]["name"] for file in stacks.values()}
    assert set(made.platforms) == platforms
    system = made.github or made.gitlab
    assert system is not None
    assert set(system.environments) == set(stacks)
    assert "/bootstrap/" in files[".github/CODEOWNERS" if ci == "github" else "CODEOWNERS"]


@pytest.mark.parametrize(("cloud", "ci"), EVERY)
def test_its_page_sets_every_variable_that_the_jobs_read(cloud: str, ci: str) -> None:
    files = render(answers(cloud, ci), Requirement())
    jobs = "".join(text for name, text in files.items() if name.startswith((".github/", ".gitlab")))
    if ci == "github":
        read = set(re.findall(r"\bvars\.([A-Z_]+)", jobs))
    else:
        names = r"STATE_URL|PLAN_IDENTITY|APPLY_IDENTITY|IDENTITY_PROVIDER|TENANT_ID|SUBSCRIPTION_ID"
        read = set(re.findall(rf"\$({names})\b", jobs))
    written = set(re.findall(r"^set_variable ([A-Z_]+)", files["bootstrap/README.md"], re.MULTILINE))
    assert read - OPTIONAL == written
    applied = re.findall(
        r"^set_variable APPLY_IDENTITY .* (\w+)$", files["bootstrap/README.md"], re.MULTILINE
    )
    assert applied == ["dev", "prod"]


@pytest.mark.parametrize(("cloud", "ci"), [("local", "github"), ("aws", "none")])
def test_there_is_none_where_nothing_would_use_it(cloud: str, ci: str) -> None:
    files = render(answers(cloud, ci), Requirement())
    assert [name for name in files if name.startswith("bootstrap/")] == []
    assert "bootstrap" not in files["README.md"]
    assert "bootstrap" not in files["Makefile"]
