"""Bad input to the command ends with exit code 1, and the message names the side that is wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rehearsal.diff.conftest import Diffs
from tests.rehearsal.diff.repos import PARTS, PROJECT, STACK, Repo


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def test_an_unknown_base(diff: Diffs) -> None:
    assert "git has no commit `nowhere`" in refused(diff("one", "--base", "nowhere"))


def test_no_git_repository(tmp_path: Path, diff: Diffs) -> None:
    shutil.copytree(PROJECT, tmp_path / "plain")
    assert "not in a git repository" in refused(diff("one", cwd=tmp_path / "plain"))


def test_a_dirty_tree(repo: Repo, diff: Diffs) -> None:
    repo.commit()
    repo.replace(STACK, "team: ml", "team: vision")
    message = refused(diff("one"))
    assert f"{STACK}: is changed" in message
    assert "--worktree" in message


def test_an_unknown_stack(repo: Repo, diff: Diffs) -> None:
    repo.commit()
    assert "did you mean `one`?" in refused(diff("onne"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("config:", "settings:", "config"),
        ("cloud: aws", "cloud: gcp", "gcp"),
        ("max_nodes: 2}", "max_nodes: 2}\n      - {name: a10g, accelerator: A10G, max_nodes: 2}", "a10g"),
        ("accelerator: A10G", "accelerator: A11G", "A11G"),
        (
            "    tags:",
            (
                "    exceptions: [{policy: no-host-path, resource: r, reason: long enough a reason, until:"
                " 2020-01-01}]\n    tags:"
            ),
            "2020-01-01",
        ),
        (
            "    tags:",
            (
                "    exceptions: [{policy: no-host-paths, resource: r, reason: long enough a reason, until:"
                " 2999-01-01}]\n    tags:"
            ),
            "did you mean `no-host-path`?",
        ),
        (
            "[203.0.113.0/24]",
            "[203.0.113.0/24, 203.0.113.128/25]",
            "203.0.113.128/25 is contained in 203.0.113.0/24",
        ),
        (
            "tags: {team: ml}",
            "tags: {team: {secure: v1:Ym9ndXM=:aaaa}}",
            "so a review cannot read it",
        ),
        ("    name: tiny", "    name: [", "YAML"),
    ],
    ids=[
        "without config",
        "wrong cloud",
        "two pools of one name",
        "no such machine",
        "exception past its date",
        "exception from no policy",
        "ranges overlap",
        "encrypted",
        "not YAML",
    ],
)
def test_a_head_whose_settings_are_wrong(repo: Repo, diff: Diffs, old: str, new: str, words: str) -> None:
    repo.replace(STACK, old, new)
    repo.commit()
    message = refused(diff("one"))
    assert "the head (" in message
    assert "stacks/Pulumi.one.yaml" in message or "Pulumi.one.yaml" in message
    assert words in message


def test_a_platform_that_already_exists_is_named_by_its_file(repo: Repo, diff: Diffs) -> None:
    repo.write("stacks/Pulumi.two.yaml", (repo.root / STACK).read_text())
    repo.commit()
    assert "also the platform of stacks/Pulumi.one.yaml" in refused(diff("two"))


@pytest.mark.deep
def test_a_base_with_an_exception_that_ran_out_can_be_compared(repo: Repo, diff: Diffs) -> None:
    text = (repo.root / STACK).read_text()
    repo.write(
        STACK,
        text + "    exceptions: [{policy: no-host-path, resource: r, reason: long enough a reason, until:"
        " 2020-01-01}]\n",
    )
    repo.commit()
    repo.write(STACK, text)
    done = diff("one", "--worktree")
    assert done.returncode == 0, done.stderr
    assert "have expired" in done.stdout


def test_a_program_that_fails_says_on_which_side(repo: Repo, diff: Diffs) -> None:
    repo.commit()
    repo.replace(
        PARTS,
        "def build(platform, extra):",
        "def build(platform, extra):\n    raise ValueError('on purpose')",
    )
    repo.commit("break")
    message = refused(diff("one"))
    assert "the head (" in message
    assert "infra/parts.py:10" in message
    assert "on purpose" in message
    repo.git("revert", "--no-edit", "HEAD")
    assert "the base (" in refused(diff("one"))


def test_a_base_that_does_not_parse_says_so(repo: Repo, diff: Diffs) -> None:
    repo.replace(PARTS, "def build(", "def build((")
    repo.commit()
    message = refused(diff("one", "--worktree"))
    assert "the base (" in message
    assert "SyntaxError" in message


def test_a_property_that_does_not_exist_is_named_with_its_side(repo: Repo, diff: Diffs) -> None:
    repo.commit()
    repo.replace(PARTS, "cidr_block=platform", "cidr_blok=platform")
    message = refused(diff("one", "--worktree"))
    assert "the head (working tree)" in message
    assert "cidr_blok" in message


def test_a_renamed_project_is_refused(repo: Repo, diff: Diffs) -> None:
    repo.replace("Pulumi.yaml", "name: tiny", "name: small")
    assert "Pulumi keeps a state for each name" in refused(diff("one", "--worktree"))


@pytest.mark.parametrize(
    "arguments", [("--bse", "main"), (), ("one", "--format", "pdf"), ("one", "--output", "nowhere/diff.html")]
)
def test_wrong_flags_end_with_one_because_two_means_a_change(diff: Diffs, arguments: tuple[str, ...]) -> None:
    assert refused(diff(*arguments))


def test_a_missing_engine_ends_with_one_because_three_means_destruction(repo: Repo, diff: Diffs) -> None:
    repo.replace(STACK, "team: ml", "team: vision")
    assert "TRAINFLEET_PULUMI" in refused(diff("one", "--worktree", TRAINFLEET_PULUMI="/nowhere/pulumi"))
