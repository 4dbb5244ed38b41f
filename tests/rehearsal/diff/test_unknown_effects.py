"""A resource type that no rule knows, through the real engine: its update is a verdict of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.rehearsal.diff.repos import PARTS, Repo

DATABASE = """
    aws.rds.Instance(
        "db", engine="mysql", instance_class="db.t3.small", allocated_storage=20, skip_final_snapshot=True,
        username="admin", password="not-a-secret-1", db_name="runs",
    )
"""


@pytest.mark.deep
def test_a_changed_engine_of_a_database_is_not_a_plain_update(
    repo: Repo, diff: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    repo.replace(PARTS, "    vpc = aws.ec2.Vpc(", f"{DATABASE}\n    vpc = aws.ec2.Vpc(")
    repo.commit("a database")
    repo.replace(PARTS, 'engine="mysql"', 'engine="postgres"')
    repo.commit("another engine")
    done = diff("one", "--base", "HEAD~1", "--json")
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] in ("may replace (unknown)", "destructive change")
    (change,) = found["changes"]
    assert change["may_replace"] == ["engine"] or "engine" in change["forced_by"]

    accepted = diff("one", "--base", "HEAD~1", "--accept-unknown", "--json")
    expected = 2 if found["verdict"] == "may replace (unknown)" else 3
    assert accepted.returncode == expected, accepted.stderr
