"""The rules of GitLab's pipelines in the harness, and which jobs the generated pipeline has for each event."""

from __future__ import annotations

import pytest

from tests.ci.expressions import UnknownFormError
from tests.ci.gitlab_rules import Chosen, choose, expanded, extended, holds, matches
from tests.init.test_gitlab import jobs
from tests.init.test_init import answers
from trainfleet.init.render import render
from trainfleet.init.requirement import Requirement

KNOWN = {"SOURCE": "web", "TASK": "", "BRANCH": "main", "DEFAULT": "main"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('$SOURCE == "web"', True),
        ('$SOURCE == "push" || $BRANCH == $DEFAULT', True),
        ('$SOURCE == "web" && $TASK', False),
        ("$TASK == null", False),  # empty is not undefined
        ("$OTHER == null", True),
        ('($SOURCE == "push" || $SOURCE == "web") && $OTHER != "x"', True),
    ],
)
def test_a_condition_is_evaluated_as_by_gitlab(source: str, expected: bool) -> None:
    assert holds(source, KNOWN) is expected


@pytest.mark.parametrize("source", ["$SOURCE =~ /web/", "($SOURCE", "", '"a" "b"', "== 1"])
def test_an_unknown_form_is_an_error(source: str) -> None:
    with pytest.raises(UnknownFormError):
        holds(source, KNOWN)


@pytest.mark.parametrize(
    ("file", "pattern", "expected"),
    [
        ("stacks/a/b.py", "stacks/**/*", True),
        ("stacks/b.py", "stacks/**/*", True),
        ("requirements.lock", "requirements.*", True),
        ("docs/requirements.txt", "requirements.*", False),
        (".gitlab/a/b.yml", ".gitlab/*", False),
    ],
)
def test_changes_match_paths(file: str, pattern: str, expected: bool) -> None:
    assert matches(file, [pattern]) is expected


def test_jobs_are_extended_and_values_expanded() -> None:
    document = {
        ".a": {"script": ["a"], "variables": {"X": "1", "Y": "2"}},
        "b": {"extends": ".a", "script": ["b"], "variables": {"Y": "3"}},
    }
    assert extended(document, "b") == {"script": ["b"], "variables": {"X": "1", "Y": "3"}}
    assert expanded("$X-${Y}-$Z", {"X": "1", "Y": "2"}) == "1-2-"


APPLIED = {f"{kind}-{stack}" for kind in ("plan", "approval", "apply") for stack in ("dev", "prod")}


@pytest.mark.parametrize(
    ("source", "more", "changed", "expected"),
    [
        ("merge_request_event", {}, "stacks/a.py", {"check", "diff", "comment"}),
        ("push", {}, "stacks/a.py", {"check"} | APPLIED),
        ("push", {}, "README.md", {"check"}),
        ("web", {}, "", APPLIED),
        # An apply that is locked would hold up the job that removes the lock.
        ("web", {"COMMAND": "cancel"}, "", {"continue-dev", "continue-prod"}),
        ("schedule", {"TASK": "drift"}, "", {"drift-dev", "drift-prod", "issue-dev", "issue-prod"}),
        ("schedule", {"TASK": "update"}, "", {"update", "propose"}),
        ("schedule", {}, "", set()),
    ],
)
def test_each_event_has_its_jobs(source: str, more: dict[str, str], changed: str, expected: set[str]) -> None:
    variables = {"CI_PIPELINE_SOURCE": source, **more}
    chosen = {name: choose(job["rules"], variables, [changed]) for name, job in jobs("aws").items()}
    found = {name: each for name, each in chosen.items() if each}
    assert set(found) == expected
    assert {name for name, each in found.items() if each == Chosen(manual=True)} == {
        name for name in expected if name.startswith("apply")
    }


def test_what_jobs_write_into_the_checkout_is_ignored() -> None:
    """Else `update` would propose its caches, and `diff` would refuse the tree."""
    files = render(answers("aws", "gitlab"), Requirement())
    ignored = files[".gitignore"].splitlines()
    assert "/.cache/" in ignored  # PIP_CACHE_DIR and XDG_CACHE_HOME
    assert "/.cache/" in f"/{files['.gitlab-ci.yml'].partition('paths: [')[2].partition(']')[0]}"
