"""The generated GitLab pipeline: its references resolve, its scripts parse, and merge requests get no credential.

GitLab's own linter needs a server. These are its rules for what the file uses.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from tests.init.test_init import answers
from trainfleet.init.render import render
from trainfleet.init.requirement import Requirement

CLOUDS = ("aws", "gcp", "azure", "local")
GLOBAL = {"stages", "include", "default", "variables", "workflow"}
KEYS = {
    "stage", "extends", "image", "id_tokens", "before_script", "script", "rules", "variables", "artifacts",
    "environment", "resource_group", "needs", "timeout", "cache", "allow_failure",
}  # fmt: skip
TOKENS = ("REVIEW_TOKEN", "UPDATE_TOKEN", "ISSUES_TOKEN", "CLOUD_TOKEN")


def pipeline(cloud: str) -> dict[str, Any]:
    """The pipeline with its includes, each job with what it extends."""
    files = render(answers(cloud, "gitlab"), Requirement())
    document = yaml.safe_load(files[".gitlab-ci.yml"])
    for include in document.get("include", []):
        other = yaml.safe_load(files[include["local"]])
        assert not other.keys() & document.keys(), "a job is defined twice"
        document |= other
    return {
        name: _extended(document, name) if name not in GLOBAL else value for name, value in document.items()
    }


def _extended(document: dict[str, Any], name: str) -> dict[str, Any]:
    job = document[name]
    bases = job.get("extends", [])
    merged: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        merged = _merge(merged, _extended(document, base))
    return _merge(merged, {key: value for key, value in job.items() if key != "extends"})


def _merge(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """GitLab merges maps and replaces lists."""
    both = low.keys() & high.keys()
    nested = {
        key: _merge(low[key], high[key])
        for key in both
        if isinstance(low[key], dict) and isinstance(high[key], dict)
    }
    return {**low, **high, **nested}


def jobs(cloud: str) -> dict[str, dict[str, Any]]:
    found = pipeline(cloud)
    return {name: job for name, job in found.items() if name not in GLOBAL and not name.startswith(".")}


def rules(job: dict[str, Any]) -> str:
    return " ".join(rule["if"] for rule in job.get("rules", []))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_reference_resolves(cloud: str) -> None:
    found = jobs(cloud)
    stages = pipeline(cloud)["stages"]
    assert {job["stage"] for job in found.values()} <= set(stages)
    for name, job in found.items():
        assert set(job) <= KEYS, name
        assert job["script"], name
        assert job["rules"], name  # without rules, a job runs in every pipeline
        for other in job.get("needs", []):
            assert stages.index(found[other]["stage"]) < stages.index(job["stage"]), name
            assert rules(job) == rules(found[other]) or job["stage"].startswith("apply"), name
    expected = {"check", "diff", "comment", "update", "propose"}
    if cloud != "local":
        kinds = ("plan", "approval", "apply", "continue", "drift", "issue")
        expected |= {f"{kind}-{stack}" for kind in kinds for stack in ("dev", "prod")}
    assert set(found) == expected


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_script_parses(cloud: str) -> None:
    for name, job in jobs(cloud).items():
        text = "\n".join([*job.get("before_script", []), *job["script"]])
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"


def require_no_code(job: dict[str, Any]) -> None:
    """The job runs nothing of the repository but its own script."""
    assert job["variables"]["GIT_STRATEGY"] == "none"
    lines = "\n".join(job["script"]).splitlines()
    assert not [line for line in lines if "make" in line or "trainfleet" in line or ".venv" in line]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_merge_request_reaches_no_credential(cloud: str) -> None:
    for name, job in jobs(cloud).items():
        if "merge_request_event" not in rules(job):
            continue
        assert name in ("check", "diff", "comment")
        if name == "comment":
            require_no_code(job)
            assert [token for token in (*TOKENS, "IDENTITY") if token in str(job)] == ["REVIEW_TOKEN"]
            assert job["environment"]["name"] == "review"  # the scope of its token
            continue
        assert "id_tokens" not in job
        assert "environment" not in job  # variables of an environment's scope
        assert not [token for token in (*TOKENS, "IDENTITY") if token in str(job)]


@pytest.mark.parametrize("cloud", CLOUDS[:3])
def test_each_job_has_one_kind_of_credential(cloud: str) -> None:
    for name, job in jobs(cloud).items():
        kinds = [token for token in TOKENS if token in str(job)]
        assert len(kinds) <= 1, name
        if name.startswith("apply-"):
            assert job["needs"] == [name.replace("apply", "plan"), name.replace("apply", "approval")]
        if name.startswith(("apply-", "continue-")):
            assert job["variables"]["IDENTITY"] == "$APPLY_IDENTITY"
            assert job["environment"]["name"] == job["variables"]["STACK"]
            assert job["resource_group"] == f"stack-{job['variables']['STACK']}"
            assert all(rule["when"] == "manual" for rule in job["rules"])
        elif kinds == ["CLOUD_TOKEN"]:
            assert job["variables"]["IDENTITY"] == "$PLAN_IDENTITY", name
        if kinds and kinds != ["CLOUD_TOKEN"]:
            assert job["environment"]["name"] not in ("dev", "prod"), name
            if kinds != ["UPDATE_TOKEN"]:  # which pushes what another job has made
                require_no_code(job)
