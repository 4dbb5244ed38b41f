"""Two applies of one stack at a time, and a job that is lost, in the generated GitLab pipeline."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.ci.conftest import log_groups
from tests.ci.gitlab import GitLab, Pipeline, run_pipeline
from tests.ci.test_cycle import ALL, Stopped
from tests.ci.test_gitlab_cycle import applied, logs, results

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]


def in_background(project: GitLab) -> Callable[[], Pipeline]:
    """Start a pipeline; the function waits for its end."""
    found: list[Pipeline] = []
    thread = threading.Thread(target=lambda: found.append(run_pipeline(project, "web")), daemon=True)
    thread.start()

    def end() -> Pipeline:
        thread.join(900)
        return found[0]

    return end


def second_that_waits(project: GitLab) -> Callable[[], Pipeline]:
    """Start another pipeline, whose apply waits for its resource group."""
    started: list[str] = []
    project.start = lambda job, _log: started.append(job) is None
    end = in_background(project)
    assert project.waiting.wait(600)
    assert started == ["apply-dev"]  # planned, and started by a person
    assert not (project.folder / "pipeline-2" / "apply-dev").exists()
    project.start = lambda _job, _log: True
    return end


def lose(folder: Path) -> None:
    """Kill a job with all of its processes, as when its runner is lost."""
    (job,) = [
        each
        for each in psutil.Process().children(recursive=True)
        if each.cmdline()[-1:] == [str(folder / "script.sh")]
    ]
    for process in [job, *job.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_second_apply_waits_and_has_nothing_left_to_do(gitlab: GitLab) -> None:
    stopped = Stopped(gitlab.services.clouds, "acme-audit", lost=False)
    first = in_background(gitlab)
    assert stopped.reached.wait(600)
    second = second_that_waits(gitlab)
    stopped.released.set()
    assert results(first())["apply-dev"] == "success", logs(first())
    late = second()
    assert results(late)["apply-dev"] == "success", logs(late)
    assert "3 unchanged" in late.jobs["apply-dev"].log
    assert log_groups(gitlab.services.clouds) == ALL


def test_a_job_that_is_lost_leaves_a_lock_and_can_be_continued(gitlab: GitLab) -> None:
    stopped = Stopped(gitlab.services.clouds, "acme-audit")
    first = in_background(gitlab)
    assert stopped.reached.wait(600)
    second = second_that_waits(gitlab)
    lose(gitlab.folder / "pipeline-1" / "apply-dev")
    stopped.released.set()
    assert results(first())["apply-dev"] == "failure"
    assert "was creating" not in first().jobs["apply-dev"].log  # it could say nothing any more

    def requires(pipeline: Pipeline, text: str) -> None:
        assert results(pipeline)["apply-dev"] == "failure", logs(pipeline)
        assert results(pipeline)["plan-prod"] == "skipped"
        assert text in pipeline.jobs["apply-dev"].log, logs(pipeline)

    def proceed(command: str) -> None:
        pipeline = run_pipeline(gitlab, "web", play="continue-dev", COMMAND=command)
        assert results(pipeline) == {"continue-dev": "success", "continue-prod": "manual"}, logs(pipeline)

    requires(second(), "is locked: created by")
    requires(second(), "the job `continue-dev` of a pipeline that is started with COMMAND=cancel")
    proceed("cancel")
    requires(run_pipeline(gitlab, "web"), "started with COMMAND=clear-pending-creates")
    proceed("clear-pending-creates")
    applied(gitlab)
    assert log_groups(gitlab.services.clouds) == ALL
