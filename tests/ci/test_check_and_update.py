"""The jobs `check` and `update` of both CI systems, executed without a network."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.ci import packages
from tests.ci.forge import Forge, git
from tests.ci.gitlab import GitLab, run_pipeline
from tests.ci.runner import Host, Run, run_workflow
from tests.ci.test_cycle import logs, results
from tests.ci.test_gitlab_cycle import logs as logs_of
from tests.ci.test_gitlab_cycle import results as results_of
from trainfleet.init.requirement import Requirement
from trainfleet.init.write import RECORD

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]
BRANCH = "weekly-update"


def require(host: Host | GitLab, line: str) -> None:
    """Make the repository depend on a package of the adopter, and set its jobs up for the local index."""
    requirements = host.forge.clone / "requirements.txt"
    requirements.write_text(f"{requirements.read_text()}{line}\n")
    host.forge.push_main("Use a package of our own")


def prepared(host: Host | GitLab, folder: Path) -> Path:
    """Give the jobs an environment in which they may install, from a local index; return the index."""
    index = folder / "index"
    packages.add_wheel(index, "1.1")
    host.python = str(packages.environment(folder / "environment"))
    host.environment = packages.settings(index)
    require(host, packages.NAME)
    return index


def proposed(forge: Forge, path: str) -> str:
    """A file of the branch that an update pushed."""
    return git(forge.bare, "show", f"{BRANCH}:{path}")


def weekly(host: Host) -> Run:
    run = run_workflow(host, "update", "schedule")
    assert results(run)["update"] == "success", logs(run)
    return run


def test_newer_packages_become_one_pull_request_that_is_updated(host: Host, tmp_path: Path) -> None:
    index, forge = prepared(host, tmp_path), host.forge
    main = forge.main
    first = weekly(host)
    assert results(first)["propose"] == "success", logs(first)
    (pull,) = forge.read()["pulls"]
    assert (pull["branch"], pull["state"]) == (BRANCH, "open")
    assert "nothing changes" in pull["body"]  # what the update does to each stack
    assert pull["body"] in first.jobs["update"].summary
    assert "acme-models==1.1" in proposed(forge, "requirements.lock").splitlines()
    assert "trainfleet" not in proposed(forge, "requirements.lock")
    changed = git(forge.bare, "diff", "--name-only", "main", BRANCH).splitlines()
    assert ".trainfleet/knowledge/aws.json" in changed
    assert {Path(name).parts[0] for name in changed} == {".trainfleet", "requirements.lock"}
    assert forge.main == main  # nothing is merged by itself

    packages.add_wheel(index, "1.2")
    second = weekly(host)
    assert results(second)["propose"] == "success", logs(second)
    assert len(forge.read()["pulls"]) == 1
    assert "acme-models==1.2" in proposed(forge, "requirements.lock").splitlines()

    git(forge.clone, "pull", "--quiet", "origin", BRANCH)
    git(forge.clone, "push", "--quiet", "origin", "main")
    quiet = weekly(host)
    assert results(quiet)["propose"] == "skipped", logs(quiet)


def from_git(host: Host | GitLab, folder: Path) -> packages.Source:
    """Make the repository one of a Trainfleet that was installed from Git, and install that."""
    source = packages.Source(folder / "source")
    source.install(Path(host.python))
    host.environment |= {**source.settings, "PYTHONPATH": ""}  # which has this checkout
    for name in ("requirements.txt", RECORD):
        file = host.forge.clone / name
        text = file.read_text()
        assert Requirement().source in text, name
        file.write_text(text.replace(Requirement().source, source.requirement))
    host.forge.push_main("Install Trainfleet from Git")
    return source


def newer_trainfleet(host: Host | GitLab, folder: Path) -> tuple[packages.Source, date]:
    """Publish a Trainfleet with another price, and another end of a Kubernetes version; return that day."""
    prepared(host, folder)
    source = from_git(host, folder)
    soon = date.today() + timedelta(days=60)
    changes = {
        "infra/aws/machines.toml": ("usd_per_hour_spot = 1.9992", "usd_per_hour_spot = 2.5"),
        "kubernetes_support.toml": ("ends = 2027-03-27", f"ends = {soon}"),
    }
    source.release("0.1.1", changes)
    return source, soon


def require_catalogue_and_calendar(forge: Forge, source: packages.Source, soon: date, text: str) -> None:
    """The update has the files of the newer Trainfleet, and its description what they say about the stacks."""
    assert source.requirement in proposed(forge, "requirements.txt")
    assert json.loads(proposed(forge, RECORD))["trainfleet"] == "0.1.1"
    changed = [line for line in text.splitlines() if line.startswith(("+", "-"))]
    prices = [line.split()[-2] for line in changed if "g6.12xlarge" in line and "0-2" in line]
    assert prices == ["2.00", "2.50"], text
    assert [line for line in changed if f"Kubernetes 1.35 ends on {soon}" in line], text


def test_a_newer_trainfleet_comes_with_its_catalogue_and_kubernetes_calendar(
    host: Host, tmp_path: Path
) -> None:
    source, soon = newer_trainfleet(host, tmp_path)
    run = weekly(host)
    assert results(run)["propose"] == "success", logs(run)
    (pull,) = host.forge.read()["pulls"]
    require_catalogue_and_calendar(host.forge, source, soon, pull["body"])


def test_a_newer_trainfleet_comes_with_its_catalogue_and_calendar_on_gitlab(
    gitlab: GitLab, tmp_path: Path
) -> None:
    source, soon = newer_trainfleet(gitlab, tmp_path)
    gitlab.forge.accept_push_options()
    pipeline = run_pipeline(gitlab, "schedule", TASK="update")
    assert results_of(pipeline) == {"update": "success", "propose": "success"}, logs_of(pipeline)
    (pull,) = gitlab.forge.read()["pulls"]
    require_catalogue_and_calendar(gitlab.forge, source, soon, pull["description"])


def test_a_package_that_is_not_available_is_named_and_nothing_is_proposed(host: Host, tmp_path: Path) -> None:
    prepared(host, tmp_path)
    require(host, "acme-unknown")
    run = run_workflow(host, "update", "schedule")
    assert results(run) == {"update": "failure", "propose": "skipped"}, logs(run)
    assert "No matching distribution found for acme-unknown" in run.jobs["update"].log
    assert host.forge.read()["pulls"] == []


def test_newer_packages_become_a_merge_request_on_gitlab(gitlab: GitLab, tmp_path: Path) -> None:
    index, forge = prepared(gitlab, tmp_path), gitlab.forge
    forge.accept_push_options()
    for version in ("1.1", "1.2"):
        packages.add_wheel(index, version)
        pipeline = run_pipeline(gitlab, "schedule", TASK="update")
        assert results_of(pipeline) == {"update": "success", "propose": "success"}, logs_of(pipeline)
        assert f"acme-models=={version}" in proposed(forge, "requirements.lock").splitlines()
        (pull,) = forge.read()["pulls"]
        assert (pull["branch"], pull["target"]) == (BRANCH, "main")
        assert "nothing changes" in pull["description"]  # what the update does to each stack
        assert pull["description"] == (pipeline.artifacts["update"] / "update.md").read_text()
    changed = git(forge.bare, "diff", "--name-only", "main", BRANCH).splitlines()
    assert {Path(name).parts[0] for name in changed} == {".trainfleet", "requirements.lock"}
    gitlab.variables["UPDATE_TOKEN"] = []
    packages.add_wheel(index, "1.3")
    refused = run_pipeline(gitlab, "schedule", TASK="update")
    assert results_of(refused) == {"update": "success", "propose": "failure"}, logs_of(refused)
    assert "acme-models==1.2" in proposed(forge, "requirements.lock").splitlines()


@pytest.mark.launch
def test_check_rehearses_tests_and_trains(host: Host) -> None:
    passed = run_workflow(host, "check", "push")
    assert results(passed) == {"check": "success"}, logs(passed)
    assert "Everything passed." in passed.jobs["check"].log
    stack = host.forge.clone / "stacks" / "Pulumi.dev.yaml"
    stack.write_text(stack.read_text().replace("owner: ml@example.com", "owner: nobody"))
    number = host.forge.open_pull_request("mistake", "Make a mistake")
    failed = run_workflow(host, "check", "pull_request", host.forge.pull_request_event(number))
    assert results(failed) == {"check": "failure"}
    assert "owner" in failed.jobs["check"].log


@pytest.mark.deep
@pytest.mark.launch
def test_check_rehearses_tests_and_trains_on_gitlab(gitlab: GitLab) -> None:
    forge = gitlab.forge
    page = forge.clone / "README.md"
    page.write_text(page.read_text() + "\nA line.\n")
    number = forge.open_pull_request("page", "Add a line")
    passed = run_pipeline(gitlab, "merge_request_event", merge_request=number)
    assert results_of(passed) == {"check": "success", "diff": "success", "comment": "success"}, logs_of(
        passed
    )
    log = passed.jobs["check"].log
    assert "Everything passed." in log
    assert "runs/spirals/report.html" in log  # the training
    assert gitlab.services.clouds.assumed == []  # no identity
    stack = forge.clone / "stacks" / "Pulumi.dev.yaml"
    stack.write_text(stack.read_text().replace("owner: ml@example.com", "owner: nobody"))
    number = forge.open_pull_request("mistake", "Make a mistake")
    failed = run_pipeline(gitlab, "merge_request_event", merge_request=number)
    assert results_of(failed)["check"] == "failure"
    assert "owner" in failed.jobs["check"].log
