"""Renders the files of a repository from the templates.

Templates are Jinja2 with `{= value =}` for values, because `{{ }}` belongs to GitHub Actions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trainfleet import __version__
from trainfleet.infra.bootstrap import json_schema
from trainfleet.infra.spec.json_schema import schema_text
from trainfleet.init.actions import ACTIONS, KUBECTL, KUBELOGIN, PULUMI
from trainfleet.init.answers import CLOUDS, Answers
from trainfleet.init.requirement import Requirement

BOOTSTRAP_STACK = "bootstrap/Pulumi.bootstrap.yaml"
TEMPLATES = Path(__file__).with_name("templates")


class File(NamedTuple):
    """A template, and where its text goes."""

    template: str
    target: str
    needed: Callable[[Answers], bool] = lambda _: True


def _in_cloud(answers: Answers) -> bool:
    return answers.cloud != "local"


def _on_github(answers: Answers) -> bool:
    return answers.ci == "github"


def _applies_on_github(answers: Answers) -> bool:
    return _on_github(answers) and _in_cloud(answers)


def _applies_on_gitlab(answers: Answers) -> bool:
    return answers.ci == "gitlab" and _in_cloud(answers)


def _bootstrapped(answers: Answers) -> bool:
    return _in_cloud(answers) and answers.ci != "none"


CHECKING = ("check", "review", "update")
APPLYING = ("apply", "apply-stack", "continue", "drift", "drift-stack")
"""Workflows with an identity of the cloud."""
FILES = (
    File("README.md.j2", "README.md"),
    File("AGENTS.md.j2", "AGENTS.md"),
    File("Makefile.j2", "Makefile"),
    File("gitignore.j2", ".gitignore"),
    File("requirements.txt.j2", "requirements.txt"),
    File("ruff.toml.j2", "ruff.toml"),
    File("Pulumi.yaml.j2", "Pulumi.yaml"),
    File("program.py.j2", "stacks/__main__.py"),
    File("stacks/{cloud}-dev.yaml.j2", "stacks/Pulumi.dev.yaml", _in_cloud),
    File("stacks/{cloud}-prod.yaml.j2", "stacks/Pulumi.prod.yaml", _in_cloud),
    File("stacks/local.yaml.j2", "stacks/Pulumi.local.yaml", lambda answers: answers.cloud == "local"),
    File("bootstrap/README.md.j2", "bootstrap/README.md", _bootstrapped),
    File("bootstrap/Pulumi.yaml.j2", "bootstrap/Pulumi.yaml", _bootstrapped),
    File("bootstrap/program.py.j2", "bootstrap/__main__.py", _bootstrapped),
    File("bootstrap/stack.yaml.j2", BOOTSTRAP_STACK, _bootstrapped),
    File("PulumiPolicy.yaml.j2", "policies/PulumiPolicy.yaml"),
    File("pack.py.j2", "policies/__main__.py"),
    File("own_rules.py.j2", "policies/own_rules.py"),
    File("spirals.py.j2", "workloads/spirals.py"),
    File("spirals.yaml.j2", "workloads/spirals.yaml"),
    File("test_rules.py.j2", "tests/test_rules.py"),
    File("test_workload.py.j2", "tests/test_workload.py"),
    File("CODEOWNERS.j2", "CODEOWNERS", lambda answers: answers.ci == "gitlab"),
    File("CODEOWNERS.j2", ".github/CODEOWNERS", _on_github),
    *(File(f"github/{name}.yml.j2", f".github/workflows/{name}.yml", _on_github) for name in CHECKING),
    *(
        File(f"github/{name}.yml.j2", f".github/workflows/{name}.yml", _applies_on_github)
        for name in APPLYING
    ),
    File("github/connect.yml.j2", ".github/actions/connect/action.yml", _applies_on_github),
    File("gitlab/gitlab-ci.yml.j2", ".gitlab-ci.yml", lambda answers: answers.ci == "gitlab"),
    *(
        File(f"gitlab/{name}.yml.j2", f".gitlab/{name}.yml", _applies_on_gitlab)
        for name in ("apply", "drift")
    ),
)


def render(answers: Answers, requirement: Requirement) -> dict[str, str]:
    """Return the text of each file by its path in the repository."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        variable_start_string="{=",
        variable_end_string="=}",
        comment_start_string="{##",
        comment_end_string="##}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    values = {
        "a": answers,
        "cloud": CLOUDS[answers.cloud],
        "requirement": requirement,
        "version": __version__,
        "actions": ACTIONS,
        "pulumi": PULUMI,
        "kubectl": KUBECTL,
        "kubelogin": KUBELOGIN,
    }
    files = {
        file.target: environment.get_template(file.template.format(cloud=answers.cloud)).render(values)
        for file in FILES
        if file.needed(answers)
    }
    if _bootstrapped(answers):
        files["bootstrap/bootstrap.schema.json"] = json_schema.schema_text()
    return {**files, "stacks/platform.schema.json": schema_text()}
