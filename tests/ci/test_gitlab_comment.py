"""The comment of the generated GitLab pipeline: one per merge request, written, updated, and what happens without a right."""

from __future__ import annotations

import pytest

from tests.ci.gitlab import GitLab, Pipeline, Variable, run_pipeline
from tests.ci.gitlab_services import BOT
from tests.ci.test_gitlab_cycle import logs, no_check, results

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1800)]
REVIEW = "review.md, an artifact of the job `diff`"


def change(project: GitLab, *, fork: bool = False) -> int:
    program = project.forge.clone / "stacks" / "__main__.py"
    program.write_text(program.read_text().replace("365", "400"))
    return project.forge.open_pull_request("longer", "Keep logs longer", fork=fork)


def reviewed(project: GitLab, number: int) -> Pipeline:
    pipeline = run_pipeline(project, "merge_request_event", merge_request=number, before=no_check(project))
    assert results(pipeline)["diff"] == "success", logs(pipeline)
    assert (pipeline.artifacts["diff"] / "review.md").is_file()
    return pipeline


def notes(project: GitLab, number: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = project.forge.pull(number).get("notes", [])
    return found


def test_one_comment_is_written_and_updated_behind_pages_of_others(gitlab: GitLab) -> None:
    number = change(gitlab)
    others = [
        {"id": each + 1, "author": {"id": 1}, "body": "<!-- review of the stacks -->\nlooks like it"}
        for each in range(205)
    ]
    gitlab.forge.change_pull(number, notes=others)
    assert "wrote the comment" in reviewed(gitlab, number).jobs["comment"].log
    *before, own = notes(gitlab, number)
    assert before == others
    assert own["author"] == {"id": BOT}
    gitlab.forge.change_pull(number, notes=[*before, {**own, "body": f"{own['body']}\nan older review"}])
    pipeline = reviewed(gitlab, number)
    assert "updated the comment" in pipeline.jobs["comment"].log
    *before, own = notes(gitlab, number)
    assert before == others
    assert (pipeline.artifacts["diff"] / "review.md").read_text() in str(own["body"])
    assert "an older review" not in str(own["body"])


@pytest.mark.parametrize(
    "why", ["no token", "a protected token", "a fork", "a role that may not", "an expired token"]
)
def test_without_a_right_to_comment_the_review_is_an_artifact(why: str, gitlab: GitLab) -> None:
    number = change(gitlab, fork=why == "a fork")
    if why == "no token":
        del gitlab.variables["REVIEW_TOKEN"]
    elif why == "a protected token":
        gitlab.variables["REVIEW_TOKEN"] = [Variable("review-token", "review")]
    elif why == "an expired token":
        gitlab.services.review_token = "a-new-one"
    gitlab.services.may_comment = why != "a role that may not"
    job = reviewed(gitlab, number).jobs["comment"]
    assert notes(gitlab, number) == []
    assert REVIEW in job.log
    refused = why in ("a role that may not", "an expired token")
    assert job.result == ("failure" if refused else "success")
    assert ("REVIEW_TOKEN needs the role Reporter and the scope `api`" in job.log) == refused, job.log


def test_other_jobs_of_the_merge_request_do_not_get_the_token(gitlab: GitLab) -> None:
    file = gitlab.forge.clone / "Makefile"
    file.write_text(file.read_text() + "\n.PHONY: setup\nsetup: show\nshow:\n\t@env\n")
    number = change(gitlab)
    log = reviewed(gitlab, number).jobs["diff"].log
    assert "CI_MERGE_REQUEST_IID=" in log  # its environment
    assert "review-token" not in log
