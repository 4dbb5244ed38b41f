"""The keys of an earlier release work for one more release, with a warning that names the new key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError, Problem
from trainfleet.infra.spec.load import load_stack, parse_spec

BASE = {"name": "lab", "cloud": "aws", "region": "us-east-2", "owner": "ml@example.com"}
RANGES = ["203.0.113.0/24"]


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        (
            {"kubernetes": {"private_endpoint": False}, "network": {"allowed_cidrs": RANGES, "zones": 2}},
            {
                "kubernetes": {"access": {"endpoint": "public", "public_ranges": RANGES}},
                "network": {"zones": 2},
            },
            ["kubernetes.private_endpoint", "network.allowed_cidrs"],
        ),
        (
            {
                "kubernetes": {"private_endpoint": False, "version": "1.35"},
                "network": {"allowed_cidrs": RANGES},
            },
            {
                "kubernetes": {
                    "access": {"endpoint": "public", "public_ranges": RANGES},
                    "version": "1.35",
                }
            },
            ["kubernetes.private_endpoint", "network.allowed_cidrs"],
        ),
    ],
)
def test_an_old_key_gives_the_same_spec_and_a_warning(
    old: dict[str, Any], new: dict[str, Any], keys: list[str]
) -> None:
    warnings: list[Problem] = []
    assert parse_spec({**BASE, **old}, warn=warnings.append) == parse_spec({**BASE, **new}, warn=_fail)
    assert [each.where for each in warnings] == keys
    assert all("kubernetes.access" in each.fix for each in warnings)


def test_a_private_endpoint_that_nobody_reaches_is_rejected_with_the_reason() -> None:
    with pytest.raises(InputError) as caught:
        parse_spec({**BASE, "kubernetes": {"private_endpoint": True}}, warn=lambda _: None)
    (problem,) = caught.value.problems
    assert problem.where == "kubernetes.access.private_ranges"
    assert "nobody could reach the API server" in problem.what


def test_an_old_key_next_to_the_new_one_is_rejected_by_name() -> None:
    both = {"access": {"public_ranges": RANGES}, "private_endpoint": False}
    with pytest.raises(InputError) as caught:
        parse_spec({**BASE, "kubernetes": both}, warn=_fail)
    assert [each.where for each in caught.value.problems] == ["kubernetes.private_endpoint"]


def test_a_warning_has_the_line_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "Pulumi.yaml").write_text("name: trainfleet\nruntime: python\n")
    (tmp_path / "stacks" / "Pulumi.lab.yaml").write_text(
        "config:\n  trainfleet:platform:\n    name: lab\n    cloud: aws\n    region: us-east-2\n"
        "    owner: ml@example.com\n    network: {allowed_cidrs: [203.0.113.0/24]}\n"
        "    kubernetes: {private_endpoint: false}\n  aws:region: us-east-2\n"
    )
    warnings: list[Problem] = []
    load_stack("lab", tmp_path, warn=warnings.append)
    assert [each.where.rpartition("/")[2] for each in warnings] == [
        "Pulumi.lab.yaml:8 kubernetes.private_endpoint",
        "Pulumi.lab.yaml:7 network.allowed_cidrs",
    ]


def _fail(problem: Problem) -> None:
    raise AssertionError(problem)
