"""The script of GitLab's job `approval-STACK`: which merge request lets a destructive plan be applied."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.ci.clouds import Clouds
from tests.ci.conftest import GITLAB_SPEC
from tests.ci.gitlab_services import Services, serve
from tests.init.test_gitlab import jobs
from trainfleet.ci.approval import LABEL
from trainfleet.infra.bootstrap.schema import parse_bootstrap

COMMIT = "c" * 40
Approval = Callable[..., subprocess.CompletedProcess[str]]


def merged(**changes: Any) -> dict[str, Any]:
    """A merge request that was approved and merged."""
    return {
        "number": 1,
        "state": "merged",
        "author": {"login": "ada"},
        "labels": [{"name": LABEL}],
        "reviews": [{"author": {"login": "grace"}, "commit": {"oid": "b2"}}],
        "headRefOid": "b2",
        "mergeCommit": {"oid": COMMIT},
        **changes,
    }


@pytest.fixture
def approval(tmp_path: Path) -> Iterator[Approval]:
    """Runs the script for a verdict of the plan and the merge requests of the project."""
    data = tmp_path / "forge.json"
    unused = cast("Clouds", None)  # this part of the API does not reach a cloud
    with serve(Services(unused, parse_bootstrap(GITLAB_SPEC), data, "")) as services:

        def run(
            *requests: dict[str, Any], code: int = 3, token: str = "review-token"
        ) -> subprocess.CompletedProcess[str]:
            data.write_text(json.dumps({"pulls": requests}))
            (tmp_path / "plan.code").write_text(f"{code}\n")
            known = {
                "PATH": os.environ["PATH"],
                "CI_API_V4_URL": f"http://127.0.0.1:{services.port}/api/v4",
                "CI_PROJECT_ID": "12345678",
                "CI_COMMIT_SHA": COMMIT,
                "CI_DEFAULT_BRANCH": "main",
                **({"REVIEW_TOKEN": token} if token else {}),
            }
            (script,) = jobs("aws")["approval-dev"]["script"]
            return subprocess.run(
                ["bash", "-e", "-c", script],
                cwd=tmp_path,
                env=known,
                capture_output=True,
                text=True,
                check=False,
            )

        yield run


@pytest.mark.parametrize(
    "request_",
    [merged(), merged(headRefOid=COMMIT, mergeCommit=None, reviews=[
        {"author": {"login": "ada"}, "commit": {"oid": COMMIT}},
        {"author": {"login": "grace"}, "commit": {"oid": COMMIT}},
    ])],
    ids=["a merge commit", "a fast-forward"],
)  # fmt: skip
def test_an_approved_merge_request_is_enough(request_: dict[str, Any], approval: Approval) -> None:
    done = approval(request_)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "merge request !1 was approved by grace\n"


@pytest.mark.parametrize("code", [0, 2])
def test_a_plan_that_loses_nothing_needs_no_token(code: int, approval: Approval) -> None:
    assert approval(code=code, token="").returncode == 0


@pytest.mark.parametrize(
    ("request_", "token", "expected"),
    [
        (merged(labels=[]), "review-token", ["has no label `destructive-change`"]),
        (merged(reviews=[]), "review-token", ["nobody but its author approved"]),
        (merged(labels=[], reviews=[]), "review-token", ["has no label", "nobody but its author"]),
        (
            merged(reviews=[{"author": {"login": "ada"}, "commit": {"oid": "b2"}}]),
            "review-token",
            ["nobody but its author"],
        ),
        (
            merged(reviews=[{"author": {"login": "grace"}, "commit": {"oid": "a1"}}]),
            "review-token",
            ["nobody but its author"],
        ),
        (merged(state="open", headRefOid=COMMIT, mergeCommit=None), "review-token", ["was merged as ccccccccc"]),
        (merged(mergeCommit={"oid": "d" * 40}, earlier_commits=[COMMIT]), "review-token", ["was merged as ccccccccc"]),
        (merged(), "", ["no REVIEW_TOKEN"]),
        (merged(), "an-old-one", ["GitLab answers 401: REVIEW_TOKEN needs the role Reporter"]),
    ],
    ids=[
        "no label", "no approval", "neither", "its author", "before the last push", "an open one", "of another commit",
        "no token", "an expired token",
    ],
)  # fmt: skip
def test_a_destructive_plan_is_refused(
    request_: dict[str, Any], token: str, expected: list[str], approval: Approval
) -> None:
    done = approval(request_, token=token)
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("this destructive plan is not approved")
    for text in expected:
        assert text in done.stderr


def test_a_verdict_that_is_not_known_is_refused(approval: Approval) -> None:
    assert approval(merged(labels=[]), code=4).returncode == 1
