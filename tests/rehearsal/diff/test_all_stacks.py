"""`diff --all` and `diff DIR`: which stacks a change affects, one comment for all, and foreign projects."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rehearsal.diff.repos import PARTS, STACK, Repo, make_repo
from trainfleet.errors import InputError
from trainfleet.rehearsal.diff.access import AccessChange
from trainfleet.rehearsal.diff.all_stacks import Failed, Report, affected
from trainfleet.rehearsal.diff.change import Change, Verb
from trainfleet.rehearsal.diff.diff import DiffOptions
from trainfleet.rehearsal.diff.html_page import html_of
from trainfleet.rehearsal.diff.model import Diff
from trainfleet.rehearsal.diff.render import MARKDOWN_LIMIT
from trainfleet.rehearsal.diff.render_all import markdown_of, text_of
from trainfleet.rehearsal.diff.worktrees import Revision

Diffs = Callable[..., "subprocess.CompletedProcess[str]"]
SINCE = DiffOptions(base="HEAD~1")


@pytest.fixture
def three(repo: Repo) -> Repo:
    """The project with two stacks of AWS and one of Google Cloud."""
    text = (repo.root / STACK).read_text()
    repo.write("stacks/Pulumi.two.yaml", text.replace("name: tiny", "name: tiny2"))
    repo.write(
        "stacks/Pulumi.three.yaml",
        text.replace("cloud: aws", "cloud: gcp").replace("name: tiny", "name: tiny3"),
    )
    repo.write("infra/gcp/network.py", "")
    repo.write("docs/page.md", "page")
    repo.write("charts/queue/Chart.yaml", "name: queue\n")
    repo.write("requirements.lock", "pulumi==3\n")
    repo.commit("stacks")
    return repo


@pytest.mark.parametrize(
    ("file", "stacks"),
    [
        ("stacks/Pulumi.two.yaml", ("two",)),
        ("stacks/__main__.py", ("one", "three", "two")),
        ("infra/parts.py", ("one", "three", "two")),
        ("infra/gcp/network.py", ("three",)),
        ("requirements.lock", ("one", "three", "two")),
        ("lib/names.py", ("one", "three", "two")),
        ("charts/queue/templates/_names.tpl", ("one", "three", "two")),
        ("charts/queue-1.0.0.tgz", ("one", "three", "two")),
        ("charts/queue/files/motd", ("one", "three", "two")),
        ("motd", ()),
        ("docs/page.md", ()),
        ("tests/test_it.py", ()),
    ],
)
def test_a_changed_file_affects_the_stacks_that_read_it(
    three: Repo, file: str, stacks: tuple[str, ...]
) -> None:
    path = three.root / file
    three.write(file, f"{path.read_text() if path.exists() else ''}\n# changed\n")
    three.commit()
    found = affected(three.root, SINCE)
    assert found.stacks == stacks
    assert [stack for stack, _ in found.skipped] == [
        each for each in ("one", "three", "two") if each not in stacks
    ]


@pytest.fixture
def bootstrapped(three: Repo) -> Repo:
    """The project with a bootstrap in a folder of its own, as `trainfleet init` makes one."""
    three.write("bootstrap/Pulumi.yaml", "name: tiny-bootstrap\nruntime: python\n")
    three.write("bootstrap/__main__.py", "")
    for name in ("bootstrap", "other"):
        settings = "config:\n  trainfleet:bootstrap: {cloud: aws}\n"
        three.write(f"bootstrap/Pulumi.{name}.yaml", settings)
    three.write("examples/shop/Pulumi.yaml", "name: shop\nruntime: python\n")
    three.write("service/Pulumi.yaml", "name: service\nruntime: python\n")
    three.write("service/Pulumi.dev.yaml", "config: {}\n")
    three.commit("a bootstrap")
    return three


@pytest.mark.parametrize(
    ("file", "stacks", "below"),
    [
        ("bootstrap/Pulumi.bootstrap.yaml", (), ("bootstrap",)),
        ("bootstrap/__main__.py", (), ("bootstrap", "other")),
        ("bootstrap/names.py", ("one", "three", "two"), ("bootstrap", "other")),
        ("stacks/Pulumi.two.yaml", ("two",), ()),
        ("stacks/__main__.py", ("one", "three", "two"), ()),
        ("infra/gcp/network.py", ("three",), ()),
        ("requirements.lock", ("one", "three", "two"), ("bootstrap", "other")),
        ("policies/__main__.py", ("one", "three", "two"), ("bootstrap", "other")),
    ],
)
def test_a_bootstrap_below_the_project_is_compared_too(
    bootstrapped: Repo, file: str, stacks: tuple[str, ...], below: tuple[str, ...]
) -> None:
    path = bootstrapped.root / file
    bootstrapped.write(file, f"{path.read_text() if path.exists() else ''}\n# changed\n")
    bootstrapped.commit()
    found = affected(bootstrapped.root, SINCE)
    assert found.stacks == stacks
    assert tuple(each.stack for each in found.bootstraps) == below
    assert {each.folder for each in found.bootstraps} <= {"bootstrap"}
    skipped = [stack for stack, _ in found.skipped]
    assert sorted([*stacks, *below, *skipped]) == ["bootstrap", "one", "other", "three", "two"]


def test_a_bootstrap_that_is_removed_is_compared(bootstrapped: Repo) -> None:
    bootstrapped.git("rm", "-r", "-q", "bootstrap")
    bootstrapped.commit()
    found = affected(bootstrapped.root, SINCE)
    assert [each.settings for each in found.bootstraps] == [
        "bootstrap/Pulumi.bootstrap.yaml",
        "bootstrap/Pulumi.other.yaml",
    ]


def test_a_deleted_stack_is_affected(three: Repo) -> None:
    three.git("rm", "-q", "stacks/Pulumi.two.yaml")
    three.commit()
    assert affected(three.root, SINCE).stacks == ("two",)


def test_an_uncommitted_file_counts_with_worktree(three: Repo) -> None:
    three.write("lib/new.py", "")
    found = affected(three.root, DiffOptions(base="HEAD", worktree=True))
    assert len(found.stacks) == 3


def test_a_project_without_stacks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "Pulumi.yaml").write_text("name: a\nruntime: python\n")
    made = make_repo(tmp_path / "repo", tmp_path / "source")
    made.commit()
    with pytest.raises(InputError, match="contains no stack settings"):
        affected(made.root, SINCE)


# ---- one document


def stack(name: str, verb: Verb | None, names: int = 1) -> Diff:
    token = "aws:s3/bucket:Bucket"
    found = tuple(
        Change(verb, f"urn:pulumi:{name}::p::{token}::{name}-{index}", token, f"{name}-{index}")
        for index in range(names)
        if verb is not None
    )
    side = Revision("main", "abc", "t")
    return Diff(name, side, side, "there", found, None, None)


def test_the_summary_comes_first_and_the_worst_stack_decides() -> None:
    report = Report((stack("dev", Verb.CREATE), stack("prod", Verb.DELETE)), (), (("gcp", "not read"),))
    assert (report.exit_code, report.verdict) == (3, "destructive change")
    text = markdown_of(report)
    assert text.startswith("### 2 affected stacks, 1 skipped: destructive change")
    assert text.index("| dev | change | 1 |") < text.index("<details")
    assert text.index("<summary>prod") < text.index("<summary>dev")
    assert "LOSS UNKNOWN: prod-0" in text
    assert "Skipped gcp: not read." in text
    assert "prod-0" in text_of(report)


def test_one_page_has_the_summary_and_a_section_for_each_stack() -> None:
    diffs = (stack("dev", Verb.CREATE), stack("prod", Verb.DELETE))
    page = html_of(Report(diffs, (Failed("lab", "cannot be <built>"),), (("gcp", "not read"),)))
    assert "<title>3 affected stacks, 1 skipped: error</title>" in page
    assert page.index('href="#stack-dev"') < page.index('id="stack-prod"') < page.index('id="stack-dev"')
    assert re.findall(r'<details class="stack" id="stack-(\w+)"( open)?>', page) == [
        ("prod", " open"),
        ("dev", ""),
    ]
    assert "lab failed: cannot be &lt;built&gt;" in page
    assert "Skipped gcp: not read." in page
    assert page.count("<h1") == 1
    assert "<script" not in page


@pytest.mark.parametrize(
    ("change", "code", "verdict"),
    [("gained", 3, "widens access"), ("unresolved", 3, "widens access"), ("lost", 2, "change")],
)
def test_access_that_a_bootstrap_gives_needs_an_approval(change: str, code: int, verdict: str) -> None:
    access = (AccessChange(change, "", (), "", "", "lab may act as role ci-apply", ("ci-apply",)),)
    plain = dataclasses.replace(stack("bootstrap", Verb.UPDATE), access=access)
    assert plain.exit_code == 2
    found = dataclasses.replace(plain, is_bootstrap=True)
    assert (found.exit_code, found.verdict) == (code, verdict)
    assert ("MORE ACCESS: ci-apply" in found.blast_radius) == (code == 3)
    text = markdown_of(Report((stack("dev", Verb.UPDATE), found), (), ()))
    assert text.startswith(f"### 2 affected stacks, 0 skipped: {verdict}")
    assert "an administrator applies it, no workflow does" in text


def test_a_failed_stack_is_the_worst() -> None:
    report = Report((stack("prod", Verb.DELETE),), (Failed("dev", "cannot be built"),), ())
    assert (report.exit_code, report.verdict) == (1, "error")
    assert "**dev** failed: cannot be built" in markdown_of(report)
    assert report.as_json()["failed"] == [{"stack": "dev", "error": "cannot be built"}]


def test_no_affected_stack_changes_nothing() -> None:
    report = Report((), (), (("dev", "not read"),))
    assert (report.exit_code, report.verdict) == (0, "no change")


def test_a_long_comment_is_cut_and_says_so() -> None:
    names = [f"stack-{index}" for index in range(12)]
    loud = [
        dataclasses.replace(
            stack(name, Verb.DELETE, 1),
            changes=tuple(
                Change(Verb.DELETE, "", f"aws:x{index}/y:Y", f"{name}-resource-with-a-long-name-{index}")
                for index in range(300)
            ),
        )
        for name in names
    ]
    text = markdown_of(Report(tuple(loud), (), ()))
    assert len(text) <= MARKDOWN_LIMIT <= 65_536
    assert "do not fit into a comment" in text
    assert all(f"| {name} |" in text for name in names)
    assert text.count("<details") == text.count("</details>")


# ---- with the engine


@pytest.mark.deep
def test_every_affected_stack_in_one_comment(three: Repo, diff: Diffs) -> None:
    three.git("rm", "-q", "stacks/Pulumi.three.yaml")
    three.commit("no third stack")
    three.replace("stacks/Pulumi.two.yaml", "team: ml", "team: vision")
    three.replace(PARTS, 'description="data"', 'description="all data"')
    three.commit("a change")
    done = diff("--all", "--base", "HEAD~1", "--jobs", "1", "--json")
    assert done.returncode == 2, done.stderr
    found = json.loads(done.stdout)
    assert [(each["stack"], each["counts"]["update"]) for each in found["stacks"]] == [("one", 1), ("two", 3)]
    page = diff("--all", "--base", "HEAD~1", "--jobs", "1", "--format", "html")
    assert page.returncode == 2, page.stderr
    assert page.stdout.startswith("<!doctype html>")
    assert page.stdout.count('<details class="stack"') == 2

    for flags, what in (
        (("--all", "one"), "STACK: has no meaning with --all"),
        (("--all", "--state", "x"), "--state: has no meaning with --all"),
        (("one", "--jobs", "2"), "--jobs: has no meaning without --all"),
        (("one", "--stack", "two"), "--stack: has no meaning without DIR"),
        ((), "has 2 stacks"),
    ):
        refused = diff(*flags)
        assert refused.returncode == 1
        assert what in refused.stderr


@pytest.mark.deep
def test_ctrl_c_starts_no_other_stack(three: Repo, tmp_path: Path) -> None:
    """As a terminal sends it: to the command and its workers."""
    three.write("lib/new.py", "")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    running = subprocess.Popen(
        [sys.executable, "-m", "trainfleet", "diff", "--all", "--worktree", "--no-cache", "--jobs", "1"],
        cwd=three.root,
        env=os.environ | {"TMPDIR": str(temporary)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seen, deadline = set[Path](), time.monotonic() + 120
    while running.poll() is None and time.monotonic() < deadline:
        new = {*temporary.rglob("trainfleet-diff-*")} - seen
        if new and not seen:
            os.killpg(running.pid, signal.SIGINT)
        seen |= new
        time.sleep(0.02)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130, output
    assert "interrupted" in output
    assert len(seen) == 1, "another diff began"
    assert not list(temporary.rglob("trainfleet-diff-*"))


PROGRAM = """import pulumi_aws as aws

aws.s3.Bucket("data", tags={"team": "a"})
aws.sqs.Queue("jobs")
"""


@pytest.mark.deep
def test_any_python_project_can_be_compared(tmp_path: Path, diff: Diffs) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "Pulumi.yaml").write_text("name: shop\nruntime: python\n")
    (source / "__main__.py").write_text(PROGRAM)
    for name in ("dev", "prod"):
        (source / f"Pulumi.{name}.yaml").write_text("config:\n  aws:region: eu-central-1\n")
    made = make_repo(tmp_path / "other", source)
    made.replace("__main__.py", '"team": "a"', '"team": "b"')
    made.replace("__main__.py", 'aws.sqs.Queue("jobs")\n', "")
    made.commit("a change")
    done = diff(str(made.root), "--stack", "prod", "--json", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert {each["name"]: each["verb"] for each in found["changes"]} == {"data": "update", "jobs": "delete"}
    assert found["spec"] == []
    assert found["cost"]["after"]["usd_per_month"] == {"min": 0, "max": 0}
    assert found["cost"]["after"]["by_usage"]
    in_its_folder = diff("prod", "--json", cwd=made.root)
    assert in_its_folder.returncode == 3, in_its_folder.stderr
    assert json.loads(in_its_folder.stdout)["changes"] == found["changes"]
    refused = diff(str(made.root), cwd=tmp_path)
    assert refused.returncode == 1
    assert "one of: dev, prod; or --all" in refused.stderr
