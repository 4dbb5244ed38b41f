"""The command on a small project, with the real engine: verdicts, exit codes, bad input, and nothing left
behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.rehearsal.diff.conftest import Diffs
from tests.rehearsal.diff.repos import PROJECT, STACK, Repo, make_repo

PARTS = "infra/parts.py"


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def verbs(found: dict[str, Any]) -> dict[str, str]:
    return {change["name"]: change["verb"] for change in found["changes"]}


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("file", "old", "new", "code", "expected"),
    [
        ("README.md", None, "words", 0, {}),
        (STACK, "team: ml", "team: vision", 2, {"runs": "update", "key": "update", "vpc": "update"}),
        (
            STACK,
            "tags:",
            "network: {cidr: 10.41.0.0/16}\n    tags:",
            3,
            {"vpc": "replace", "subnet": "replace"},
        ),
        (PARTS, '"tiny-runs"', '"tiny-runs-2"', 3, {"runs": "replace"}),
        (PARTS, 'description="data"', 'description="more data"', 2, {"key": "update"}),
        (PARTS, "    aws.kms.Key(\n", "    (lambda *_, **__: None)(\n", 3, {"key": "delete"}),
    ],
    ids=["readme", "label", "cidr", "bucket", "description", "protected"],
)
def test_one_change_at_a_time(
    repo: Repo, diff: Diffs, file: str, old: str | None, new: str, code: int, expected: dict[str, str]
) -> None:
    if old is None:
        repo.write(file, new)
    else:
        repo.replace(file, old, new)
    repo.commit()
    done = diff("one", "--format", "json")
    found = document(done)
    assert (done.returncode, verbs(found)) == (code, expected), done.stderr
    assert found["exit_code"] == code


def test_a_replacement_names_what_forces_it_and_what_is_lost(repo: Repo, diff: Diffs) -> None:
    repo.replace(PARTS, '"tiny-runs"', '"tiny-runs-2"')
    repo.replace(PARTS, 'description="data"', 'description="data", customer_master_key_spec="RSA_2048"')
    found = document(diff("one", "--worktree", "--json"))
    bucket, key = (
        next(change for change in found["changes"] if change["name"] == name) for name in ("runs", "key")
    )
    assert (bucket["forced_by"], bucket["loss"]["kinds"], bucket["destructive"]) == (
        ["bucket"],
        ["data"],
        True,
    )
    assert bucket["properties"] == [
        {"path": "bucket", "old": "tiny-runs", "new": "tiny-runs-2", "forces": True}
    ]
    assert (key["verb"], key["protected"], key["kept"]) == ("replace", True, True)
    assert "LOSES DATA: runs" in found["blast_radius"]
    assert "LEAVES BEHIND: key" in found["blast_radius"]


def test_a_new_stack_makes_everything_and_a_deleted_one_takes_everything(repo: Repo, diff: Diffs) -> None:
    repo.write("stacks/Pulumi.two.yaml", (repo.root / STACK).read_text().replace("name: tiny", "name: other"))
    repo.commit()
    done = diff("two", "--json")
    found = document(done)
    assert (done.returncode, found["stack_is"]) == (2, "new")
    assert set(verbs(found).values()) == {"create"}
    assert found["cost"]["before"] is None
    (repo.root / "stacks/Pulumi.two.yaml").unlink()
    repo.commit()
    done = diff("two", "--json")
    found = document(done)
    assert (done.returncode, found["stack_is"]) == (3, "deleted")
    assert verbs(found) == dict.fromkeys(("runs", "key", "vpc", "subnet", "secret"), "delete")
    assert found["cost"]["after"] is None


@pytest.mark.deep
def test_the_second_diff_takes_the_base_from_the_cache_and_says_the_same(repo: Repo, diff: Diffs) -> None:
    base = f"team: t{uuid.uuid4().hex[:8]}"  # no earlier run of this test has left it in the cache
    repo.replace(STACK, "team: ml", base)
    repo.commit()
    repo.replace(STACK, base, "team: vision")
    repo.commit()
    first, second, without = (document(diff("one", "--json", *more)) for more in ((), (), ("--no-cache",)))
    assert (first["base_from_cache"], second["base_from_cache"], without["base_from_cache"]) == (
        False,
        True,
        False,
    )
    for found in (first, second, without):
        del found["seconds"], found["base_from_cache"]
    assert first == second == without


@pytest.mark.deep
def test_a_damaged_cache_is_recreated(repo: Repo, diff: Diffs, cache_home: Path) -> None:
    repo.replace(STACK, "team: ml", "team: speech")
    repo.commit()
    diff("one")
    for entry in (cache_home / "trainfleet/diff").iterdir():
        entry.write_bytes(b"\x1f\x8b damaged")
    done = diff("one", "--json")
    assert done.returncode == 2, done.stderr
    assert document(done)["base_from_cache"] is False


def test_secrets_never_show_and_need_no_passphrase(repo: Repo, diff: Diffs) -> None:
    salt = (
        "encryptionsalt:"
        " v1:dyhDUfAjOzc=:v1:fo9Rt8QSc6VE8RSd:SUPTKrc9ev45w7CIkr6898Hxqhnt0A==\nsecretsprovider:"
        " awskms://alias/none\n"
    )
    repo.write(STACK, salt + (repo.root / STACK).read_text() + '  extra:word: {secure: "v1:abc:def"}\n')
    repo.commit()
    repo.replace(STACK, "v1:abc:def", "v1:ghi:jkl")
    repo.replace(
        PARTS, 'extra.get_secret("word")', 'extra.require_secret("word").apply(lambda word: word + "-2")'
    )
    repo.commit()
    done = diff("one", "--json")
    found = document(done)
    assert verbs(found) == {"secret": "update"}, done.stderr
    assert [(each["path"], each["old"], each["new"]) for each in found["changes"][0]["properties"]] == [
        ("value", "[secret]", "[secret]")
    ]
    assert [(each["path"], each["new"]) for each in found["spec"]] == [("extra:word", "[secret]")]
    assert "rehearsal-extra-word" not in done.stdout


def test_the_cost_of_a_larger_pool_is_right(repo: Repo, diff: Diffs) -> None:
    repo.replace(STACK, "max_nodes: 2", "max_nodes: 4")
    found = document(diff("one", "--worktree", "--json"))
    before, after = found["cost"]["before"]["usd_per_hour"], found["cost"]["after"]["usd_per_hour"]
    assert after["min"] == before["min"]
    assert after["max"] - before["max"] == pytest.approx(2 * 1.006)
    assert "at min as before, +$1,469/month at max" in found["blast_radius"]
    pool = next(part for part in found["cost"]["after"]["parts"] if part["name"] == "a10g")
    assert (pool["what"], pool["price_date"]) == ("g5.xlarge", "2026-07-20")


def test_a_price_that_is_missing_is_reported_and_not_counted_as_nothing(repo: Repo, diff: Diffs) -> None:
    held = (
        "accelerator: H200, per_node: 8, instance_type: p5e.48xlarge, capacity: reserved, reservation:"
        " cr-0123456789abcdef0"
    )
    repo.replace(STACK, "accelerator: A10G, per_node: 1", held)
    done = diff("one", "--worktree")
    assert "no price known for a10g" in done.stdout, done.stderr
    assert "No price is known for a10g" in done.stdout


def test_policies_that_newly_fail_are_named(repo: Repo, diff: Diffs) -> None:
    repo.write("policies/PulumiPolicy.yaml", "runtime: python\n")
    repo.write(
        "policies/__main__.py",
        "from pulumi_policy import EnforcementLevel, PolicyPack, ResourceValidationPolicy\ndef check(args,"
        " report):\n    if args.resource_type == 'aws:s3/bucket:Bucket' and (args.props.get('tags') or"
        " {}).get('team') != 'ml':\n        report('the bucket belongs to another team')\n    if"
        " args.resource_type == 'aws:ec2/vpc:Vpc':\n        report('networks are always wrong')\npolicies ="
        " [ResourceValidationPolicy('own-team', 'Buckets are ours.', check,"
        " EnforcementLevel.MANDATORY)]\nPolicyPack('tiny', policies, EnforcementLevel.MANDATORY)\n",
    )
    repo.commit()
    repo.replace(STACK, "team: ml", "team: vision")
    done = diff("one", "--worktree", "--json")
    found = document(done)
    failing = found["policies"]["newly_failing"]
    assert [(each["policy"], each["resource"], each["level"]) for each in failing] == [
        ("own-team", "runs", "mandatory")
    ], done.stderr
    assert "1 policy newly fails" in found["blast_radius"]


def test_a_report_is_written_whole_and_does_not_make_the_tree_dirty(repo: Repo, diff: Diffs) -> None:
    repo.replace(PARTS, '"tiny-runs"', '"tiny-runs-3"')
    repo.commit()
    for form, begins in (("html", "<!doctype html>"), ("markdown", "### `one`")):
        done = diff("one", "--format", form, "--output", "diff.out")
        assert done.returncode == 3, done.stderr
        assert (repo.root / "diff.out").read_text().startswith(begins)
        assert "LOSES DATA: runs" in done.stderr


def test_a_project_below_gits_top_and_a_read_only_one(tmp_path: Path, diff: Diffs) -> None:
    repo = make_repo(tmp_path / "mono", PROJECT, below="platforms/ml")
    repo.replace(STACK, "team: ml", "team: vision")
    repo.commit()
    for path in [repo.top, *repo.top.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        done = diff("one", "--json", cwd=repo.root)
    finally:
        for path in [repo.top, *repo.top.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)
    assert done.returncode == 2, done.stderr


# ---- bad input: always exit code 1, and the side that is wrong by name


def test_an_unknown_base(diff: Diffs) -> None:
    assert "git has no commit `nowhere`" in refused(diff("one", "--base", "nowhere"))


def test_no_git_repository(tmp_path: Path, diff: Diffs) -> None:
    import shutil

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
            "    tags:",
            "    network: {allowed_cidrs: [203.0.113.0/24, 203.0.113.128/25]}\n    tags:",
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
    assert "have run out" in done.stdout


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


def test_an_interrupt_leaves_no_folder_no_process_and_no_work_tree(
    repo: Repo, cache_home: Path, tmp_path: Path
) -> None:
    repo.replace(STACK, "team: ml", "team: vision")
    scratch = tmp_path / "interrupted"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch), "XDG_CACHE_HOME": str(cache_home)}
    # Signals as a shell gives them to a command in front, also where the tests themselves run in the
    # background and ignore Ctrl-C.
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from trainfleet.cli import"
        " main; main()"
    )
    command = [sys.executable, "-P", "-c", start, "diff", "one", "--worktree", "--no-cache"]
    child = subprocess.Popen(
        command,
        cwd=repo.root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    family: set[psutil.Process] = set()
    try:
        limit = time.monotonic() + 120
        while (
            len(family) < 2 and child.poll() is None and time.monotonic() < limit
        ):  # the engine and the program
            family |= set(psutil.Process(child.pid).children(recursive=True))
        assert len(family) >= 2, child.communicate()
        os.kill(child.pid, signal.SIGINT)
        _, output = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, output
    assert list(scratch.iterdir()) == []
    assert [
        each
        for each in psutil.wait_procs(list(family), timeout=10)[1]
        if each.status() != psutil.STATUS_ZOMBIE
    ] == []
    assert repo.git("worktree", "list").count("\n") == 0


def test_nothing_is_left_behind_after_success_and_failure(repo: Repo, diff: Diffs, tmp_path: Path) -> None:
    repo.replace(STACK, "team: ml", "team: vision")
    assert diff("one", "--worktree").returncode == 2
    repo.replace(PARTS, "def build(", "def built(")
    assert diff("one", "--worktree").returncode == 1
    assert list((tmp_path / "tmp").iterdir()) == []
