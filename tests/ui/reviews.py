"""A diff and the drift of a stack, as the commands write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainfleet.rehearsal.diff.change import Change, Verb
from trainfleet.rehearsal.diff.data_loss import Loss
from trainfleet.rehearsal.diff.model import Diff, Failing
from trainfleet.rehearsal.diff.worktrees import Revision


def a_diff(stack: str, name: str = "runs") -> Diff:
    """A diff that deletes a bucket, replaces a node group and fails a policy."""
    bucket = Change(
        Verb.DELETE, f"urn:pulumi:{stack}::p::aws:s3/bucket:Bucket::{name}", "aws:s3/bucket:Bucket", name,
        loss=Loss(("data",), "the objects of the bucket", True),
    )  # fmt: skip
    pool = Change(
        Verb.REPLACE, f"urn:pulumi:{stack}::p::aws:eks/nodeGroup:NodeGroup::h100", "aws:eks/nodeGroup:NodeGroup", "h100",
        forced_by=("instanceTypes",), loss=Loss(("work",), "pods on its nodes are evicted", True),
    )  # fmt: skip
    failing = Failing("bucket-versioning", name, "versioning is off", "mandatory")
    base, head = (
        Revision("main", "a" * 40, "t", "Add a pool"),
        Revision("HEAD", "b" * 40, "u", "Remove the bucket"),
    )
    return Diff(
        stack,
        base,
        head,
        "there",
        (bucket, pool),
        None,
        None,
        (failing,),
        notes=("the base is from the cache",),
    )


def write_diff(folder: Path, stack: str, **changed: Any) -> Path:
    """Write the document of `trainfleet diff STACK --json`."""
    file = folder / f"{stack}.json"
    file.write_text(json.dumps(a_diff(stack).as_json() | changed))
    return file


def drift_document(stack: str) -> dict[str, Any]:
    """The fields of `trainfleet drift STACK --json` that are shown, and one that is not."""
    resource = {
        "urn": f"urn:pulumi:{stack}::p::aws:s3/bucket:Bucket::runs", "type": "aws:s3/bucket:Bucket", "name": "runs", "what": "changed",
        "severity": "high", "next_up": "update", "certain": True, "repair": "pulumi up restores it", "loss": None, "expected": "",
        "properties": [{"path": "versioning.enabled", "state": True, "cloud": False, "expected": ""}],
    }  # fmt: skip
    return {
        "schema_version": 1, "project": "p", "stack": stack, "source": "refresh", "exit_code": 3, "severity": "high",
        "fingerprint": f"trainfleet-drift:p/{stack}", "digest": "0", "checked": 120, "resources": [resource], "notes": [],
    }  # fmt: skip
