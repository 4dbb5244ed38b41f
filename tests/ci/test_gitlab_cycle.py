"""The generated GitLab pipeline, executed: merge requests, plans, applies that somebody starts, drift."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import yaml

from tests.ci.conftest import log_groups
from tests.ci.forge import Forge
from tests.ci.gitlab import GitLab, Pipeline, Variable, run_pipeline
from tests.ci.test_cycle import ALL, delete
from trainfleet.ci.approval import LABEL

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]
PLAN_AND_APPLY = [f"{kind}-{stack}" for stack in ("dev", "prod") for kind in ("plan", "approval", "apply")]


def results(pipeline: Pipeline) -> dict[str, str]:
    return {name: job.result for name, job in pipeline.jobs.items()}


def logs(pipeline: Pipeline) -> str:
    return "\n".join(f"==== {job.name}: {job.result}\n{job.log}" for job in pipeline.jobs.values())


def applied(project: GitLab, source: str = "web") -> Pipeline:
    pipeline = run_pipeline(project, source)
    found = results(pipeline)
    assert [found[name] for name in PLAN_AND_APPLY] == ["success"] * len(PLAN_AND_APPLY), logs(pipeline)
    return pipeline


def no_check(project: GitLab) -> Callable[[str, str], None]:
    """Replace `make check`, which has a test of its own."""

    def replace(job: str, _script: str) -> None:
        if job == "check":
            make = project.folder / f"pipeline-{project.runs}" / "check" / "work" / "Makefile"
            make.write_text("check:\n\t@echo passed\n")

    return replace


def without_audit(forge: Forge) -> int:
    program = forge.clone / "stacks" / "__main__.py"
    program.write_text(program.read_text().replace('("audit", "access")', '("access",)'))
    return forge.open_pull_request("no-audit", "Remove the audit log")


def test_a_merge_request_is_reviewed_merged_and_applied(gitlab: GitLab) -> None:
    started: list[tuple[str, set[str]]] = []

    def start(job: str, log: str) -> bool:
        assert "Plan: plan.json, SHA-256" in log  # what the person who starts it reads
        started.append((job, log_groups(gitlab.services.clouds)))
        return True

    gitlab.start = start
    applied(gitlab)
    clouds = gitlab.services.clouds
    assert started == [("apply-dev", set()), ("apply-prod", {"dev-audit", "dev-access"})]
    assert log_groups(clouds) == ALL
    ends = {
        role: {subject.partition(":ref:main")[2] for each, subject in clouds.assumed if each == role}
        for role in ("plan", "apply")
    }
    assert ends["apply"] == {":environment_protected:true:deployment_tier:production"}
    assert ends["plan"] == {":environment_protected::deployment_tier:"}
    assert (clouds.store.folder / "runs" / "contracts" / "prod.json").is_file()

    number = without_audit(gitlab.forge)
    assumed = len(clouds.assumed)

    def review() -> Pipeline:
        found = run_pipeline(gitlab, "merge_request_event", merge_request=number, before=no_check(gitlab))
        assert set(found.jobs) == {"check", "diff", "comment"}
        assert "LOSES" in (found.artifacts["diff"] / "review.md").read_text()
        return found

    refused = review()
    assert results(refused)["diff"] == "failure"
    assert "This change is destructive, or widens access" in refused.jobs["diff"].log
    gitlab.forge.label(number, LABEL)
    assert results(review())["diff"] == "failure"  # a label alone does not suffice
    gitlab.forge.approve(number, "grace")
    agreed = review()
    assert set(results(agreed).values()) == {"success"}, logs(agreed)
    (note,) = gitlab.forge.pull(number)["notes"]  # one, of three pipelines
    assert "LOSES" in note["body"]
    assert len(clouds.assumed) == assumed  # a merge request gets no identity
    gitlab.forge.merge(number)
    merged = run_pipeline(gitlab, "push", before=no_check(gitlab))
    assert set(results(merged).values()) == {"success"}, logs(merged)
    assert log_groups(clouds) == {"dev-access", "prod-access"}


def test_a_destructive_plan_without_an_approved_merge_request_is_not_applied(gitlab: GitLab) -> None:
    applied(gitlab)
    number = without_audit(gitlab.forge)
    gitlab.forge.merge(number)  # somebody bypassed the check
    refused = run_pipeline(gitlab, "push", before=no_check(gitlab))
    assert {name: found for name, found in results(refused).items() if name != "check"} == {
        "plan-dev": "success", "approval-dev": "failure", "apply-dev": "skipped",
        "plan-prod": "skipped", "approval-prod": "skipped", "apply-prod": "skipped",
    }, logs(refused)  # fmt: skip
    assert "this destructive plan is not approved" in refused.jobs["approval-dev"].log
    # The verdict is not a variable, which the user who starts a pipeline could set.
    assert results(run_pipeline(gitlab, "web", CODE="0"))["approval-dev"] == "failure"
    assert log_groups(gitlab.services.clouds) == ALL
    gitlab.forge.label(number, LABEL)
    gitlab.forge.approve(number, "grace")
    assert "approved by grace" in applied(gitlab).jobs["approval-dev"].log
    assert log_groups(gitlab.services.clouds) == {"dev-access", "prod-access"}


def test_more_access_in_the_bootstrap_is_approved_and_never_applied(gitlab: GitLab) -> None:
    settings = gitlab.forge.clone / "bootstrap" / "Pulumi.bootstrap.yaml"
    project = yaml.safe_load(settings.read_text())["config"]["trainfleet:bootstrap"]["gitlab"]["project"]
    settings.write_text(settings.read_text().replace(f"project: {project}", "project: another-group/acme"))
    number = gitlab.forge.open_pull_request("other", "Trust another project")

    def review() -> Pipeline:
        return run_pipeline(gitlab, "merge_request_event", merge_request=number, before=no_check(gitlab))

    refused = review()
    assert results(refused)["diff"] == "failure", logs(refused)
    text = (refused.artifacts["diff"] / "review.md").read_text()
    assert "MORE ACCESS: ci-apply, ci-plan" in text
    assert "project_path:another-group/acme:" in text
    gitlab.forge.label(number, LABEL)
    gitlab.forge.approve(number, "grace")
    assert results(review())["diff"] == "success"
    gitlab.forge.merge(number)
    merged = run_pipeline(gitlab, "push", before=no_check(gitlab))
    assert results(merged) == {"check": "success"}, logs(merged)


def test_an_apply_that_nobody_starts_holds_the_next_environment(gitlab: GitLab) -> None:
    gitlab.start = lambda job, _log: job == "apply-dev"
    pipeline = run_pipeline(gitlab, "web")
    assert results(pipeline)["apply-prod"] == "manual", logs(pipeline)
    assert log_groups(gitlab.services.clouds) == {"dev-audit", "dev-access"}
    gitlab.start = lambda _job, _log: False
    assert results(run_pipeline(gitlab, "web"))["plan-prod"] == "skipped"


@pytest.mark.parametrize("change", ["environment", "branch", "tier"])
def test_a_job_that_the_bootstrap_does_not_trust_applies_nothing(gitlab: GitLab, change: str) -> None:
    file = gitlab.forge.clone / ".gitlab" / "apply.yml"
    text = file.read_text()
    changed = {
        "environment": text.replace("  environment: {name: dev, deployment_tier: production}", "  #", 1),
        "tier": text.replace("deployment_tier: production", "deployment_tier: staging"),
        "branch": text,
    }[change]
    assert (changed == text) == (change == "branch")
    file.write_text(changed)
    if change == "branch":
        gitlab.services.spec = gitlab.services.spec.model_copy(
            update={"gitlab": gitlab.services.spec.gitlab.model_copy(update={"branch": "release"})}  # type: ignore[union-attr] # the spec has it
        )
    else:
        gitlab.forge.push_main("Change the pipeline")
    gitlab.variables["APPLY_IDENTITY"].append(Variable(gitlab.variables["APPLY_IDENTITY"][0].value))
    pipeline = run_pipeline(gitlab, "web")
    assert results(pipeline)["apply-dev"] == "failure", logs(pipeline)
    assert "AssumeRoleWithWebIdentity" in pipeline.jobs["apply-dev"].log
    assert log_groups(gitlab.services.clouds) == set()


def test_a_plan_that_was_exchanged_is_not_applied(gitlab: GitLab) -> None:
    other: list[bytes] = []

    def exchange(job: str, _script: str) -> None:
        if job == "apply-dev":
            plan = gitlab.folder / f"pipeline-{gitlab.runs}" / job / "work" / "plan.json"
            other.append(plan.read_bytes().replace(b"365", b"1"))
            plan.write_bytes(other[0])

    def refused(**variables: str) -> None:
        pipeline = run_pipeline(gitlab, "web", before=exchange, **variables)
        assert results(pipeline)["apply-dev"] == "failure"
        assert "this is not the reviewed plan" in pipeline.jobs["apply-dev"].log

    refused()
    # The digest is not a variable, which the user who starts a pipeline could set.
    refused(SHA256=hashlib.sha256(other[0]).hexdigest())
    assert log_groups(gitlab.services.clouds) == set()


def test_drift_is_one_issue_that_is_updated_and_closed(gitlab: GitLab) -> None:
    applied(gitlab)

    def night(**variables: str) -> list[tuple[str, str]]:
        pipeline = run_pipeline(gitlab, "schedule", TASK="drift", **variables)
        assert set(results(pipeline).values()) == {"success"}, logs(pipeline)
        assert set(pipeline.jobs) == {"drift-dev", "drift-prod", "issue-dev", "issue-prod"}
        return [(issue["title"], issue["state"]) for issue in gitlab.forge.read()["issues"]]

    assert night() == []
    delete(gitlab.services.clouds, "dev-audit")
    assert night(CODE="0") == [("Drift in dev", "open")]  # the verdict is not a variable
    assert night() == [("Drift in dev", "open")]
    assert "acme-audit" in gitlab.forge.read()["issues"][0]["body"]
    applied(gitlab)
    assert log_groups(gitlab.services.clouds) == ALL
    assert night() == [("Drift in dev", "closed")]


def test_a_lock_that_is_left_is_removed_by_a_pipeline_with_a_command(gitlab: GitLab) -> None:
    applied(gitlab)
    locks = (
        gitlab.services.clouds.store.folder / "runs" / ".pulumi" / "locks" / "organization" / "acme" / "dev"
    )
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "11111111-2222-3333-4444-555555555555.json").write_text(
        '{"pid": 1, "username": "ada", "hostname": "runner", "timestamp": "2026-11-01T00:00:00Z"}'
    )
    program = gitlab.forge.clone / "stacks" / "__main__.py"
    program.write_text(program.read_text().replace("365", "400"))
    gitlab.forge.push_main("Keep logs longer")
    locked = run_pipeline(gitlab, "web")
    assert results(locked)["apply-dev"] == "failure", logs(locked)
    assert "pulumi cancel --stack dev --yes" in locked.jobs["apply-dev"].log
    released = run_pipeline(gitlab, "web", play="continue-dev", COMMAND="cancel")
    assert results(released) == {"continue-dev": "success", "continue-prod": "manual"}, logs(released)
    applied(gitlab)
