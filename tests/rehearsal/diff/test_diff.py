"""The command on a small project, with the real engine: verdicts, exit codes, costs and policies."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.diff.conftest import Diffs
from tests.rehearsal.diff.repos import PARTS, PROJECT, STACK, Repo, make_repo


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def verbs(found: dict[str, Any]) -> dict[str, str]:
    return {change["name"]: change["verb"] for change in found["changes"]}


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


@pytest.mark.deep
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


MACHINE = """    aws.ec2.Instance("gpu", ami="ami-0123456789abcdef0", instance_type="g5.xlarge")
"""


@pytest.mark.deep
def test_the_cost_of_another_machine_is_right(repo: Repo, diff: Diffs) -> None:
    repo.replace(PARTS, "    aws.ssm.Parameter(", f"{MACHINE}    aws.ssm.Parameter(")
    found = document(diff("one", "--worktree", "--json"))
    machine = next(part for part in found["cost"]["after"]["parts"] if part["what"] == "g5.xlarge")
    assert (machine["most"], machine["price_date"]) == (1, "2026-07-20")
    assert machine["usd_per_hour"] == pytest.approx(1.006)
    before, after = found["cost"]["before"]["usd_per_hour"], found["cost"]["after"]["usd_per_hour"]
    assert after["min"] - before["min"] >= 1.006


def test_a_price_that_is_missing_is_reported_and_not_counted_as_nothing(repo: Repo, diff: Diffs) -> None:
    unpriced = MACHINE.replace("g5.xlarge", "p5e.48xlarge")
    repo.replace(PARTS, "    aws.ssm.Parameter(", f"{unpriced}    aws.ssm.Parameter(")
    done = diff("one", "--worktree")
    assert "no price known for gpu" in done.stdout, done.stderr
    assert "No price is known for gpu" in done.stdout


@pytest.mark.deep
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


@pytest.mark.deep
def test_a_report_is_written_whole_and_does_not_make_the_tree_dirty(repo: Repo, diff: Diffs) -> None:
    repo.replace(PARTS, '"tiny-runs"', '"tiny-runs-3"')
    repo.commit()
    for form, begins in (("html", "<!doctype html>"), ("markdown", "### `one`")):
        done = diff("one", "--format", form, "--output", "diff.out")
        assert done.returncode == 3, done.stderr
        assert (repo.root / "diff.out").read_text().startswith(begins)
        assert "LOSES DATA: runs" in done.stderr


@pytest.mark.deep
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
