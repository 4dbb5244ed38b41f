"""The smoke training of an apply: a launch on the cluster that the contract names, with the job's login.

The cluster is a stand-in (cluster.py); tests/cluster/test_smoke_training.py runs the same step on a real one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.ci.clouds import NOWHERE, Clouds
from tests.ci.cluster import IMAGE, NAMESPACE, Cluster, cluster
from tests.ci.conftest import log_groups, write_small_program
from tests.ci.gitlab import GitLab, Variable, run_pipeline
from tests.ci.runner import Host, run_workflow
from tests.ci.test_cycle import logs, results
from tests.ci.test_gitlab_cycle import logs as logs_of
from tests.ci.test_gitlab_cycle import results as results_of

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]
ERROR = {"kind": "error", "summary": "the loss is NaN", "problems": [], "exit_code": 1}


@pytest.fixture
def platform() -> Iterator[Cluster]:
    """The cluster of both stacks."""
    with cluster("acme-dev") as found:
        yield found


def push(host: Host | GitLab, **known: Any) -> None:
    """Put a contract into the outputs of both stacks."""
    write_small_program(host.forge.clone, **known)
    host.forge.push_main("Name the cluster")


def dev_job(host: Host) -> tuple[str, str]:
    """Apply with the smoke training; the result and the log of the job of dev."""
    host.variables[""]["SMOKE_TRAINING"] = ""
    run = run_workflow(host, "apply", "push")
    assert results(run)["dev / plan"] == "success", logs(run)
    if results(run)["dev / apply"] == "failure":
        assert results(run)["prod"] == "skipped"  # the next environment waits for a platform that trains
    return results(run)["dev / apply"], run.jobs["dev / apply"].log


def require_training(platform: Cluster, clouds: Clouds, name: str) -> None:
    """A small run, with limits, on the cluster and in the bucket of the contract; it is gone from the cluster."""
    (job,) = platform.runs
    assert job["metadata"]["namespace"] == NAMESPACE
    assert IMAGE in json.dumps(job)
    assert (
        job["spec"]["activeDeadlineSeconds"] == (15 + 30 + 15) * 60
    )  # max_hours, --within, and a margin to save
    stored = clouds.store.folder / "runs" / "platform" / name
    assert list(stored.glob("code/*.tar.gz"))  # spirals.py of the repository
    assert platform.left == []


def test_an_applied_platform_trains_unless_its_environment_says_no(
    host: Host, simulated: Clouds, platform: Cluster
) -> None:
    push(host, **platform.contract)
    host.variables[""]["SMOKE_TRAINING"] = "yes"
    host.variables["prod"]["SMOKE_TRAINING"] = "no"
    run = run_workflow(host, "apply", "push")
    assert set(results(run).values()) == {"success"}, logs(run)
    require_training(platform, simulated, f"smoke-{host.runs}-1")
    assert "finished 2 steps" in run.jobs["dev / apply"].log
    assert "finished" not in run.jobs["prod / apply"].log


def error_of_the_run(_host: Host, platform: Cluster) -> None:
    platform.lines = [{"kind": "attempt", "started": "1"}, ERROR]


def no_machines(host: Host, platform: Cluster) -> None:
    platform.lines = None
    change(host, "--within 30m", "--within 2s")


def full_queue(host: Host, platform: Cluster) -> None:
    platform.lines = None
    change(host, " 60m trainfleet", " 20s trainfleet")


def no_right(_host: Host, platform: Cluster) -> None:
    platform.api.refusals["GET", f"/api/v1/namespaces/{NAMESPACE}"] = (401, "Unauthorized")


def change(host: Host, old: str, new: str) -> None:
    """Change the workflow of the apply."""
    file = host.forge.clone / ".github" / "workflows" / "apply-stack.yml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (error_of_the_run, "the loss is NaN"),
        (no_machines, "the run did not get its machines in time"),
        (full_queue, "interrupted"),
        (no_right, "the cluster rejects your login"),
    ],
)
def test_a_platform_that_does_not_train_fails_the_apply(
    fault: Callable[[Host, Cluster], None], message: str, host: Host, simulated: Clouds, platform: Cluster
) -> None:
    fault(host, platform)
    push(host, **platform.contract)
    result, log = dev_job(host)
    assert result == "failure", log
    assert message in log, log
    assert platform.left == []
    assert log_groups(simulated) == {"dev-audit", "dev-access"}  # what is applied stays


@pytest.mark.parametrize("outputs", ["without a cluster", "of a cluster that does not answer"])
def test_a_cluster_that_the_runner_does_not_reach_is_named(
    outputs: str, host: Host, platform: Cluster
) -> None:
    platform.api.address = NOWHERE
    known = {"image": IMAGE} if outputs == "without a cluster" else platform.contract
    push(host, **known)
    result, log = dev_job(host)
    assert result == "failure", log
    expected = "--stack dev: its outputs have no cluster" if "kubeconfig" not in known else "acme-dev: "
    assert expected in log, log
    assert known == {"image": IMAGE} or "the cluster does not answer" in log


def test_a_platform_trains_on_gitlab_and_one_that_does_not_fails_its_apply(
    gitlab: GitLab, platform: Cluster
) -> None:
    push(gitlab, **platform.contract)
    gitlab.variables["SMOKE_TRAINING"] = [Variable("no", "prod")]
    pipeline = run_pipeline(gitlab, "web")
    found = results_of(pipeline)
    assert (found["apply-dev"], found["apply-prod"]) == ("success", "success"), logs_of(pipeline)
    require_training(platform, gitlab.services.clouds, f"smoke-{gitlab.runs}00")
    assert "no smoke training: SMOKE_TRAINING is no" in pipeline.jobs["apply-prod"].log
    platform.lines = [{"kind": "attempt", "started": "1"}, ERROR]
    pipeline = run_pipeline(gitlab, "web")
    assert results_of(pipeline)["apply-dev"] == "failure", logs_of(pipeline)
    assert "the loss is NaN" in pipeline.jobs["apply-dev"].log
    assert results_of(pipeline)["plan-prod"] == "skipped"
