"""Who holds the lock of a stack: a state in a bucket or folder has a file for each running operation."""

from __future__ import annotations

import contextlib
import json
import subprocess

from trainfleet.ci.publish import storage_url
from trainfleet.errors import TrainfleetError
from trainfleet.training.stores import RetryPolicy, open_store

FOLDER = ".pulumi/locks/organization"
"""Source: pkg/backend/diy/lock.go of Pulumi, `stackLockDir`. Another layout reads as no lock."""


def holders(program: str, project: str, stack: str) -> list[str]:
    """Return who holds the lock, as the engine writes it; empty if nobody does, or if it cannot be read.

    Args:
        program: the Pulumi command line, logged in to the state.
        project: the name of the Pulumi project.
        stack: the name of the stack.
    """
    command = [program, "whoami", "--verbose", "--json", "--non-interactive"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    found = []
    # Pulumi Cloud has no such files, and rejects a second operation by itself.
    with contextlib.suppress(TrainfleetError, ValueError, KeyError, TypeError, ImportError):
        url = str(json.loads(done.stdout)["url"])
        if not url.startswith(("s3://", "gs://", "azblob://", "file://")):
            return []
        store = open_store(storage_url(url), RetryPolicy(attempts=1))
        for path in store.sizes(f"{FOLDER}/{project}/{stack}"):
            lock = json.loads(store.read(path))
            found.append(
                f"created by {lock['username']}@{lock['hostname']} (pid {lock['pid']}) at {lock['timestamp']}"
            )
    return found
