"""Cases of relations: objects that exist in a cloud, the object that is created next, and what rejects it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.state import Cloud, RefusedError

Right = tuple[str, list[CloudObject], CloudObject]
"""A name, what exists, and what is created."""
Wrong = tuple[str, list[CloudObject], CloudObject, str]
"""The same, and a part of the message."""


def record(token: str, resource_id: str, outputs: dict[str, Any] | None = None, **inputs: Any) -> CloudObject:
    name = resource_id.rsplit("/", 1)[-1]
    return CloudObject(
        f"urn:pulumi:s::p::{token}::{name}", token, resource_id, "", inputs, {**inputs, **(outputs or {})}
    )


def each_wrong(cases: Sequence[Wrong]) -> pytest.MarkDecorator:
    """A test for each mistake, with the parameters `there`, `what` and `output`."""
    return pytest.mark.parametrize(
        ("there", "what", "output"), [case[1:] for case in cases], ids=[case[0] for case in cases]
    )


def each_right(cases: Sequence[Right]) -> pytest.MarkDecorator:
    """A test for each correct program, with the parameters `there` and `what`."""
    return pytest.mark.parametrize(
        ("there", "what"), [case[1:] for case in cases], ids=[case[0] for case in cases]
    )


def assert_rejected(there: list[CloudObject], what: CloudObject, output: str) -> None:
    with pytest.raises(RefusedError) as caught:
        cloud_with(there).create(what)
    assert output in str(caught.value)


def assert_accepted(there: list[CloudObject], what: CloudObject) -> None:
    cloud_with(there).create(what)


def cloud_with(there: list[CloudObject]) -> Cloud:
    return Cloud(records={each.key: each for each in there})
