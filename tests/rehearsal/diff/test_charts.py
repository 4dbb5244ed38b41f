"""A diff says that it does not look inside Helm charts, for each chart that changes."""

from __future__ import annotations

import pytest

from trainfleet.rehearsal.diff.change import Change, Property, Verb
from trainfleet.rehearsal.diff.charts import chart_notes

RELEASE, CHART = "kubernetes:helm.sh/v3:Release", "kubernetes:helm.sh/v4:Chart"


def change(
    name: str, *properties: tuple[str, object, object], token: str = RELEASE, verb: Verb = Verb.UPDATE
) -> Change:
    found = tuple(Property(path, old, new, forces=False) for path, old, new in properties)
    return Change(verb, f"urn:pulumi:one::tiny::{token}::{name}", token, name, found, (), None)


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (change("kueue", ("version", "0.14.0", "0.15.0")), "kueue (version 0.14.0 → 0.15.0)"),
        (change("kueue", ("version", None, "0.15.0")), "kueue (version none → 0.15.0)"),
        (change("kueue", ("values.replicas", 1, 2)), "kueue (values)"),
        (
            change(
                "kueue", ("chart", "a", "b"), ("valueYamlFiles[0]", "x", "y"), token=CHART, verb=Verb.REPLACE
            ),
            "kueue (chart a → b, values)",
        ),
    ],
    ids=["version", "first version", "values", "chart of v4"],
)
def test_a_changed_chart_is_named_with_what_is_not_compared(found: Change, named: str) -> None:
    (note,) = chart_notes([found])
    assert f"Of {named}, versions and values are compared" in note
    assert "CustomResourceDefinitions" in note


@pytest.mark.parametrize(
    "found",
    [
        change("kueue", ("timeout", 300, 600)),
        change("kueue", ("version", "1", "2"), verb=Verb.DELETE),
        change("map", ("data.version", "1", "2"), token="kubernetes:core/v1:ConfigMap"),
    ],
    ids=["another setting", "deleted", "no chart"],
)
def test_what_is_compared_in_full_has_no_note(found: Change) -> None:
    assert chart_notes([found]) == []


def test_all_charts_are_in_one_note() -> None:
    (note,) = chart_notes([change("b", ("version", "1", "2")), change("a", ("values.x", 1, 2))])
    assert "Of a (values), b (version 1 → 2), versions" in note
