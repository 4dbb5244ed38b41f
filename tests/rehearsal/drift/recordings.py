"""Recordings of a refresh, as Pulumi writes them: events of resources that the cloud changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Metadata = dict[str, Any]
BUCKET = "aws:s3/bucket:Bucket"
SUBNET = "aws:ec2/subnet:Subnet"
GROUP = "aws:ec2/securityGroup:SecurityGroup"
RULE = "aws:ec2/securityGroupRule:SecurityGroupRule"
NODES = "aws:eks/nodeGroup:NodeGroup"


def urn(token: str, name: str) -> str:
    return f"urn:pulumi:prod::fleet::{token}::{name}"


def state(token: str, name: str, inputs: dict[str, Any], outputs: dict[str, Any] | None = None) -> Metadata:
    return {
        "type": token,
        "urn": urn(token, name),
        "custom": True,
        "id": f"{name}-1",
        "inputs": inputs,
        "outputs": {**inputs, **(outputs or {})},
    }


def read(old: Metadata, new: Metadata | None, **more: Any) -> list[Metadata]:
    """The events of one resource in a refresh: it is announced, and then read (`new` None: it is gone)."""
    op = "delete" if new is None else "same" if old == new else "update"
    shared = {"urn": old["urn"], "type": old["type"], "old": old}
    return [
        {"resourcePreEvent": {"metadata": {**shared, "op": "refresh", "new": old}}},
        {"resOutputsEvent": {"metadata": {**shared, "op": op, "new": new, **more}}},
    ]


def planned(op: str, old: Metadata | None, new: Metadata | None, **more: Any) -> list[Metadata]:
    """The event of a step that the program plans after the refresh."""
    of = old or new
    assert of is not None
    metadata = {"op": op, "urn": of["urn"], "type": of["type"], "old": old, "new": new, **more}
    return [{"resourcePreEvent": {"metadata": metadata}}]


def changed(of: Metadata, **values: Any) -> Metadata:
    """A resource as the cloud has it: both sides with other values."""
    sides = {side: {**of[side], **values} for side in ("inputs", "outputs")}
    return {**of, **{side: {k: v for k, v in each.items() if v is not None} for side, each in sides.items()}}


def write(folder: Path, *events: Metadata, whole: bool = True) -> Path:
    file = folder / "refresh.jsonl"
    end = [{"summaryEvent": {"resourceChanges": {}}}] if whole else []
    file.write_text("".join(json.dumps({"sequence": 0, **each}) + "\n" for each in [*events, *end]))
    return file
