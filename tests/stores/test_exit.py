"""A process that has used a store ends, whatever login it had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores.running import Running
from trainfleet.training.stores import open_store

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
USE = """
from trainfleet.training.stores import open_store
kept = open_store("s3://runs")
kept.backend.client
"""

FAILED_WRITE = """
import os, sys
from trainfleet.training.stores import RetryPolicy, StoreError, open_store

def produce(output):
    for _ in range(3):
        output.write(os.urandom(6 << 20))
    raise OSError("the disk of the source is gone")

store = open_store(sys.argv[1], RetryPolicy(attempts=1, stall_s=20.0))
try:
    store.write("partial", produce)
except StoreError as error:
    print("failed")
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("store_server", ["s3", "gs", "az"], indirect=True)
def test_a_process_whose_write_failed_ends_without_the_file(store_server: Running, prefix: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILED_WRITE, store_server.url(prefix)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "failed\n"), done.stderr
    assert open_store(store_server.url(prefix)).sizes() in ({}, {"partial": 0})  # Azure's is empty


@pytest.mark.parametrize("login", ["web identity", "keys"])
def test_a_process_with_an_s3_client_ends(login: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-a-job")
    identity = {
        "AWS_ROLE_ARN": "arn:aws:iam::111122223333:role/ci",
        "AWS_ROLE_SESSION_NAME": "job",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(file),
    }
    given = {"AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(
        [sys.executable, "-c", USE],
        env=os.environ | given | (identity if login == "web identity" else KEYS),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
