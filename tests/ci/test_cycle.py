"""The generated workflows, executed: a change is reviewed, approved, planned, approved again and applied."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import psutil
import pytest

from tests.ci.clouds import Clouds
from tests.ci.conftest import log_groups
from tests.ci.runner import Host, Run, run_workflow
from trainfleet.ci.approval import LABEL
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.fault_injection import InjectedFaultError
from trainfleet.training.launch.platform_outputs import load_platform

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]
ALL = {"dev-audit", "dev-access", "prod-audit", "prod-access"}


def results(run: Run) -> dict[str, str]:
    return {name: job.result for name, job in run.jobs.items()}


def logs(run: Run) -> str:
    return "\n".join(f"==== {job.name}: {job.result}\n{job.log}" for job in run.jobs.values())


def applied(host: Host) -> Run:
    """Push once and apply."""
    run = run_workflow(host, "apply", "push")
    assert set(results(run).values()) == {"success"}, logs(run)
    return run


def without_audit(host: Host) -> None:
    program = host.forge.clone / "stacks" / "__main__.py"
    program.write_text(program.read_text().replace('("audit", "access")', '("access",)'))


def review(host: Host, number: int) -> Run:
    return run_workflow(host, "review", "pull_request", host.forge.pull_request_event(number))


def test_a_merge_is_applied_per_environment_with_the_plan_that_was_approved(
    host: Host, simulated: Clouds, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, set[str]]] = []

    def approve(environment: str, summary: str) -> bool:
        asked.append((environment, summary, log_groups(simulated)))
        return True

    host.approve = approve
    run = applied(host)
    assert log_groups(simulated) == ALL
    assert [environment for environment, _, _ in asked] == ["dev", "prod"]
    for environment, summary, existing in asked:
        plan = run.artifacts[f"plan-{environment}"] / "plan.json"
        assert f"SHA-256 {hashlib.sha256(plan.read_bytes()).hexdigest()}" in summary
        assert not [name for name in existing if name.startswith(environment)]  # nothing before the approval
    subjects = dict(simulated.assumed)
    assert subjects == simulated.trust
    assert b"of-the-program" not in (run.artifacts["plan-dev"] / "plan.json").read_bytes()
    # What was published is what every `--stack` reads, and nothing else of the program.
    for name, value in simulated.store.environment(simulated.store.port).items():
        monkeypatch.setenv(name, value)
    url = f"{simulated.store.url}/contracts/dev.json"
    assert load_platform(url).outputs.bucket_url == "s3://runs/platform"
    published = simulated.store.folder / "runs" / "contracts" / "dev.json"
    assert "of-the-program" not in published.read_text()


def test_a_rejected_environment_is_not_applied(host: Host, simulated: Clouds) -> None:
    host.approve = lambda environment, _: environment != "prod"
    run = run_workflow(host, "apply", "push")
    assert results(run)["prod / apply"] == "failure"
    assert log_groups(simulated) == {"dev-audit", "dev-access"}


def test_a_destructive_change_is_rejected_until_it_is_approved_and_then_applied(
    host: Host, simulated: Clouds
) -> None:
    applied(host)
    without_audit(host)
    number = host.forge.open_pull_request("no-audit", "Remove the audit log")
    first = review(host, number)
    assert results(first) == {
        "diff": "success", "comment": "success", "findings": "success", "destructive": "failure",
    }, logs(first)  # fmt: skip
    assert f"has no label `{LABEL}`" in first.jobs["destructive"].log
    assert "nobody but its author approved" in first.jobs["destructive"].log
    (comment,) = host.forge.pull(number)["comments"]
    assert "LOSES" in comment
    assert "audit" in comment
    host.forge.label(number, LABEL)
    assert review(host, number).jobs["destructive"].result == "failure"  # a label alone does not suffice
    host.forge.approve(number, "grace")
    second = review(host, number)
    assert set(results(second).values()) == {"success"}, logs(second)
    assert len(host.forge.pull(number)["comments"]) == 1
    assert log_groups(simulated) == ALL  # a review applies nothing
    host.forge.merge(number)
    run = applied(host)
    assert "approved by grace" in run.jobs["dev / plan"].log
    assert log_groups(simulated) == {"dev-access", "prod-access"}


def test_more_access_in_the_bootstrap_is_approved_and_never_applied(host: Host, simulated: Clouds) -> None:
    applied(host)
    before = simulated.cloud.everything()
    settings = host.forge.clone / "bootstrap" / "Pulumi.bootstrap.yaml"
    settings.write_text(settings.read_text().replace("[dev, prod]", "[dev, prod, lab]"))
    number = host.forge.open_pull_request("lab", "Let jobs of lab apply")
    refused = review(host, number)
    assert results(refused)["destructive"] == "failure", logs(refused)
    (comment,) = host.forge.pull(number)["comments"]
    assert comment.startswith("### 1 affected stack, 2 skipped: widens access")
    assert "MORE ACCESS: ci-apply" in comment
    assert ":environment:lab" in comment
    assert "an administrator applies it, no workflow does" in comment
    host.forge.label(number, LABEL)
    host.forge.approve(number, "grace")
    agreed = review(host, number)
    assert set(results(agreed).values()) == {"success"}, logs(agreed)
    host.forge.merge(number)
    applied(host)  # even a run that somebody starts
    assert simulated.cloud.everything() == before


def test_a_destructive_plan_without_an_approved_pull_request_is_not_applied(
    host: Host, simulated: Clouds
) -> None:
    applied(host)
    without_audit(host)
    number = host.forge.open_pull_request("no-audit", "Remove the audit log")
    host.forge.merge(number)  # somebody bypassed the check
    run = run_workflow(host, "apply", "push")
    assert results(run) == {
        "dev / plan": "failure", "dev / apply": "skipped", "dev": "failure", "prod": "skipped",
    }, logs(run)  # fmt: skip
    assert "this destructive change is not approved" in run.jobs["dev / plan"].log
    assert log_groups(simulated) == ALL


def test_a_plan_that_was_exchanged_is_not_applied(host: Host, simulated: Clouds) -> None:
    def exchange(job: str, text: str) -> None:
        if job == "dev / apply" and "ci apply" in text:
            (plan,) = host.folder.glob("run-*/dev-apply/workspace/plan.json")
            plan.write_text(plan.read_text().replace("365", "1"))

    host.before = exchange
    run = run_workflow(host, "apply", "push")
    assert results(run)["dev / apply"] == "failure"
    assert "this is not the reviewed plan" in run.jobs["dev / apply"].log
    assert log_groups(simulated) == set()


def test_a_plan_does_not_fit_after_the_cloud_changed(host: Host, simulated: Clouds) -> None:
    applied(host)
    program = host.forge.clone / "stacks" / "__main__.py"
    program.write_text(program.read_text().replace("365", "400"))
    host.forge.push_main("Keep logs longer")

    def remove(job: str, text: str) -> None:
        if job == "dev / apply" and "ci apply" in text:
            delete(simulated, "dev-audit")

    host.before = remove
    run = run_workflow(host, "apply", "push")
    assert results(run)["dev / apply"] == "failure", logs(run)
    assert "changed since the plan was reviewed" in run.jobs["dev / apply"].log


def delete(found: Clouds, name: str) -> None:
    """Delete a log group by hand."""
    key = next(key for key, each in found.cloud.records.items() if each.outputs.get("name") == name)
    del found.cloud.records[key]


def test_a_fork_gets_a_review_and_no_token(host: Host, simulated: Clouds) -> None:
    without_audit(host)
    number = host.forge.open_pull_request("fork", "Remove the audit log", fork=True)
    run = review(host, number)
    assert results(run) == {
        "diff": "success", "comment": "skipped", "findings": "skipped", "destructive": "failure",
    }, logs(run)  # fmt: skip
    assert "LOSES" in run.jobs["diff"].summary
    assert host.forge.pull(number)["comments"] == []
    assert simulated.assumed == []


class Stopped:
    """Stops the simulated cloud before it creates one resource, until it is released; by then, the engine is gone or
    not.
    """

    def __init__(self, found: Clouds, name: str, *, lost: bool = True) -> None:
        self.reached, self.released = threading.Event(), threading.Event()
        create = found.cloud.create

        def stop(record: CloudObject, timeout: float = 0.0) -> None:
            if record.urn.endswith(f"::{name}") and not self.released.is_set():
                self.reached.set()
                self.released.wait(300)
                if lost:
                    raise InjectedFaultError("the engine is gone")
            create(record, timeout)

        found.cloud.create = stop  # type: ignore[method-assign] # of this cloud only


def engine_of(folder: Path) -> psutil.Process:
    """The `pulumi up` that runs in a job of this folder."""
    (found,) = [
        each
        for each in psutil.Process().children(recursive=True)
        if "up" in each.cmdline()[1:2] and str(folder) in each.cwd() and "pulumi" in each.name()
    ]
    return found


def test_a_second_apply_is_rejected_and_a_killed_one_can_be_continued(host: Host, simulated: Clouds) -> None:
    stopped, runs = Stopped(simulated, "acme-audit"), []
    thread = threading.Thread(target=lambda: runs.append(run_workflow(host, "apply", "push")), daemon=True)
    thread.start()
    assert stopped.reached.wait(300)
    second = run_workflow(host, "apply", "push")
    assert results(second)["dev / apply"] == "failure", logs(second)
    assert "is locked: created by" in second.jobs["dev / apply"].log
    assert "clear-pending-creates" not in second.jobs["dev / apply"].log  # the first apply still runs
    engine = engine_of(host.folder)
    for process in [*engine.children(recursive=True), engine]:  # as when a runner is lost
        process.kill()
    thread.join(300)
    stopped.released.set()
    assert results(runs[0])["dev / apply"] == "failure"
    killed = runs[0].jobs["dev / apply"].log
    assert "was creating when an apply ended" in killed
    assert "pulumi cancel --stack dev --yes" in killed

    def proceed(command: str) -> None:
        run = run_workflow(host, "continue", "workflow_dispatch", inputs={"stack": "dev", "command": command})
        assert set(results(run).values()) == {"success"}, logs(run)

    def next_apply_says(text: str) -> None:
        run = run_workflow(host, "apply", "workflow_dispatch")
        assert results(run)["dev / apply"] == "failure"
        assert text in run.jobs["dev / apply"].log, logs(run)

    next_apply_says("`continue` with `cancel`")
    proceed("cancel")
    next_apply_says("`continue` with `clear-pending-creates`")
    proceed("clear-pending-creates")
    applied(host)
    assert log_groups(simulated) == ALL


def test_drift_is_reported_as_one_issue_and_repaired(host: Host, simulated: Clouds) -> None:
    applied(host)
    quiet = run_workflow(host, "drift", "schedule")
    assert set(results(quiet).values()) == {"success"}, logs(quiet)
    assert host.forge.read()["issues"] == []
    delete(simulated, "dev-audit")
    for _ in range(2):  # the second night updates the issue of the first
        night = run_workflow(host, "drift", "schedule")
        assert set(results(night).values()) == {"success"}, logs(night)
        (issue,) = host.forge.read()["issues"]
        assert (issue["title"], issue["state"]) == ("Drift in dev", "open")
        assert "acme-audit" in issue["body"]
    assert log_groups(simulated) == ALL - {"dev-audit"}  # a report repairs nothing
    applied(host)
    assert log_groups(simulated) == ALL
    last = run_workflow(host, "drift", "schedule")
    assert set(results(last).values()) == {"success"}, logs(last)
    (issue,) = host.forge.read()["issues"]
    assert issue["state"] == "closed"
