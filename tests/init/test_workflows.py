"""The generated GitHub workflows: valid, pinned, and no credential within reach of a pull request's code."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.init.test_init import answers
from trainfleet.init.render import APPLYING, CHECKING, render
from trainfleet.init.requirement import Requirement
from trainfleet.toolchain import cache_folder, find_go, run_go

ACTIONLINT = "v1.7.12"
CLOUDS = ("aws", "gcp", "azure", "local")
RUNS_NO_CODE = {"gh", "git", "if", "then", "else", "elif", "fi", "[", "case", "esac", "echo", "test"}
"""The words with which a line may begin in a job whose token writes."""


def generated(cloud: str) -> dict[str, str]:
    """The files of a new repository with GitHub Actions."""
    return render(answers(cloud), Requirement())


def workflows(cloud: str) -> dict[str, str]:
    """Its workflows, by their path."""
    return {name: text for name, text in generated(cloud).items() if name.startswith(".github/workflows/")}


EVERY = [(cloud, name) for cloud in CLOUDS for name in sorted(workflows(cloud))]


@pytest.fixture(scope="module")
def actionlint() -> Path:
    """actionlint, built once into the user's cache."""
    target = cache_folder() / f"actionlint-{ACTIONLINT}" / "actionlint"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        go = find_go(lambda _: None)
        command = [str(go), "build", "-o", str(target), "github.com/rhysd/actionlint/cmd/actionlint"]
        run_go(command, Path(__file__).with_name("actionlint"), lambda _: None, "actionlint")
    return target


def lint(actionlint: Path, folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return subprocess.run([actionlint], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_actionlint_accepts_every_workflow(cloud: str, actionlint: Path, tmp_path: Path) -> None:
    names = CHECKING if cloud == "local" else (*CHECKING, *APPLYING)
    assert {Path(name).stem for name in workflows(cloud)} == set(names)
    done = lint(actionlint, tmp_path, generated(cloud))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "old", "new", "found"),
    [
        ("review", "needs.diff.outputs.code", "needs.dif.outputs.code", "dif"),
        ("apply", "{stack: dev}", "{stak: dev}", "stak"),  # an input of the called workflow
        ("apply-stack", "          identity: ", "          identiy: ", "identiy"),  # of the composite action
    ],
)
def test_actionlint_finds_a_mistake(
    name: str, old: str, new: str, found: str, actionlint: Path, tmp_path: Path
) -> None:
    files = generated("aws")
    path = f".github/workflows/{name}.yml"
    assert old in files[path]
    done = lint(actionlint, tmp_path, {**files, path: files[path].replace(old, new)})
    assert done.returncode == 1
    assert found in done.stdout


def jobs(text: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["jobs"]
    return found


def events(text: str) -> set[str]:
    document: dict[Any, Any] = yaml.safe_load(text)
    found = document[True]  # YAML 1.1 reads `on` as true
    return {found} if isinstance(found, str) else set(found)


def steps(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from job.get("steps", [])


def permissions(document: dict[Any, Any], job: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = job.get("permissions", document["permissions"])
    return found


def mistakes(text: str) -> list[str]:
    """What would let the code of a pull request reach a credential."""
    document, found = yaml.safe_load(text), []
    if {"pull_request_target", "workflow_run", "issue_comment"} & events(text):
        found.append("an event that runs with secrets on a fork's pull request")
    if "secrets." in text or "secrets:" in text:
        found.append("a stored secret")
    if "write" in set((document["permissions"] or {}).values()):
        found.append("a token that writes in every job")
    for name, job in jobs(text).items():
        allowed = permissions(document, job)
        writes = {key for key, value in allowed.items() if value == "write"}
        on_pull_request = "pull_request" in events(text)
        if on_pull_request and ("id-token" in writes or "environment" in job or "vars." in str(job)):
            found.append(f"{name}: an identity of the cloud on a pull request")
        if writes - {"id-token"} and "uses" not in job:
            found += [f"{name}: runs `{word}` next to a token that writes" for word in _programs(job)]
        if "id-token" in writes and writes - {"id-token"} and "uses" not in job:
            found.append(f"{name}: an identity of the cloud and a token that writes")
        for step in steps(job):
            run, uses = step.get("run", ""), step.get("uses", "")
            if "${{" in run:
                found.append(f"{name}: text from outside in a script")
            keeps = step.get("with", {}).get("persist-credentials", True)
            if "actions/checkout" in uses and keeps and "contents" not in writes:
                found.append(f"{name}: the checkout keeps the token")
            if "actions/checkout" in uses and "head" in str(step.get("with", {}).get("ref", "")):
                found.append(f"{name}: checks out the head of a pull request by name")
    return found


def _programs(job: dict[str, Any]) -> set[str]:
    """The programs that a job runs, except those that run no code of a repository."""
    lines = [line for step in steps(job) for line in step.get("run", "").splitlines() if line.strip()]
    words = {shlex.split(line.replace("$(", " "))[0].partition("=")[0] for line in lines}
    return words - RUNS_NO_CODE - {"number"}


@pytest.mark.parametrize(("cloud", "name"), EVERY)
def test_a_pull_request_reaches_no_credential(cloud: str, name: str) -> None:
    assert mistakes(workflows(cloud)[name]) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("review", "  pull_request:", "  pull_request_target:", "an event"),
        ("review", "permissions: {contents: read}", "permissions: {id-token: write}", "identity of the cloud"),
        ("review", "runs-on: ubuntu-24.04", "environment: prod\n    runs-on: ubuntu-24.04", "identity"),
        ("review", '"$BASE"', "${{ github.head_ref }}", "text from outside"),
        ("review", "fetch-depth: 0, persist-credentials: false", "fetch-depth: 0", "keeps the token"),
        ("review", "contents: read}", "contents: read, pull-requests: write}", "next to a token"),
        ("review", "base.sha }}\", persist", "head.sha }}\", persist", "head of a pull request"),
        ("review", "permissions: {}", "permissions: {contents: write}", "in every job"),
        ("check", "make check", "make check TOKEN=$X\n        env: {X: \"${{ secrets.X }}\"}", "a stored secret"),
        ("drift-stack", "issues: write}", "issues: write, id-token: write}", "and a token that writes"),
        ("update", "{contents: read}", "{contents: write}", "runs `make`"),
    ],
)  # fmt: skip
def test_each_way_to_a_credential_is_found(name: str, old: str, new: str, expected: str) -> None:
    text = workflows("aws")[f".github/workflows/{name}.yml"]
    assert old in text
    assert any(expected in each for each in mistakes(text.replace(old, new)))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_action_is_pinned_by_its_commit(cloud: str) -> None:
    found = 0
    for name, text in generated(cloud).items():
        if not name.startswith(".github/"):
            continue
        for line in text.splitlines():
            if match := re.search(r"uses: (\S+)(.*)", line):
                found += 1
                local = match[1].startswith("./")
                assert local or re.fullmatch(r"[\w-]+/[\w./-]+@[0-9a-f]{40}", match[1]), f"{name}: {line}"
                assert local or re.match(r" # v\d+\.\d+\.\d+", match[2]), f"{name}: {line}"
    assert found > 5


@pytest.mark.parametrize("ci", ["github", "gitlab"])
def test_the_tools_of_an_azure_cluster_are_pinned(ci: str, root: Path) -> None:
    text = "\n".join(render(answers("azure", ci), Requirement()).values())
    (command,) = re.findall(r"az aks install-cli (.*)", text)
    given = shlex.split(command)
    versions = dict(zip(given[::2], given[1::2], strict=True))
    assert re.fullmatch(r"\d+\.\d+\.\d+", versions["--kubelogin-version"])
    pins = (root / "trainfleet" / "pins" / "kubernetes" / "kube" / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{versions['--client-version']}\n" in pins  # that of the local cluster


def test_only_the_apply_has_the_identity_that_writes() -> None:
    for name, text in workflows("aws").items():
        for key, job in jobs(text).items():
            if "vars.APPLY_IDENTITY" in str(job):
                assert key in ("apply", "continue"), name
                assert job["environment"], name  # the cloud's role is bound to it, and it has reviewers
            if "vars.PLAN_IDENTITY" in str(job):
                assert "environment" not in job, name


def test_the_applies_of_a_stack_are_locked() -> None:
    files = workflows("gcp")
    for stack in ("dev", "prod"):
        lock = jobs(files[".github/workflows/apply.yml"])[stack]["concurrency"]
        assert lock == {"group": f"stack-{stack}", "cancel-in-progress": False}
    other = jobs(files[".github/workflows/continue.yml"])["continue"]["concurrency"]
    assert other == {"group": "stack-${{ inputs.stack }}", "cancel-in-progress": False}
    assert jobs(files[".github/workflows/apply.yml"])["prod"]["needs"] == "dev"
