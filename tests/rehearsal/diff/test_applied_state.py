"""The resources of an applied or imported state, from the files of the engine."""

from __future__ import annotations

import json

import pytest

from trainfleet.rehearsal.diff.two_sided_run import Applied

FILE = ".pulumi/stacks/shop/prod.json"


@pytest.mark.parametrize("key", ["latest", "Latest"], ids=["after an update", "after an import"])
def test_the_resources_of_a_state_are_read_and_lose_their_protection(key: str) -> None:
    document = {"checkpoint": {key: {"resources": [{"urn": "u::a", "protect": True}]}}}
    applied = Applied({FILE: json.dumps(document), ".pulumi/meta.yaml": "version: 1"})
    assert applied.resources() == [{"urn": "u::a", "protect": True}]
    assert applied.without_protection().resources() == [{"urn": "u::a"}]
