"""The gatherer of facts about Google Cloud reads what is certain and leaves the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.api_facts.discovery import facts, normal, read_apis
from tools.api_facts.naming import name_rule
from tools.api_facts.places import OPTIONAL
from trainfleet.rehearsal.simulation.facts import FACTS, faults


def document(version: str, *values: str) -> dict[str, object]:
    thing = {
        "modes": {"type": "array", "items": {"type": "string", "enum": list(values)}},
        "ttl": {"type": "string", "format": "google-duration"},
    }
    create = {
        "httpMethod": "POST",
        "request": {"$ref": "Thing"},
        "parameters": {"thingId": {"location": "query", "description": "`[a-z]{3,9}`"}},
    }
    return {
        "name": "things",
        "version": version,
        "revision": "20260101",
        "schemas": {"Thing": {"properties": thing}},
        "resources": {"things": {"methods": {"create": create}}},
    }


def test_versions_of_an_api_are_taken_together(tmp_path: Path) -> None:
    for version, values in (("v1", ("A",)), ("v1beta1", ("A", "B"))):
        (tmp_path / f"things.{version}.json").write_text(json.dumps(document(version, *values)))
    (api,) = read_apis(tmp_path, ["things", "none"])
    entries = [schemas["Thing"] for schemas in api.versions]
    assert facts([entry["mode"] for entry in entries], number=False) == {"enum": ["A", "B"]}
    assert "pattern" in facts([entry["ttl"] for entry in entries], number=False)
    assert api.ids[0] == {"Thing": {"thingid": "`[a-z]{3,9}`"}}
    assert (normal("allow_policies"), normal("Addresses"), normal("status")) == (
        "allowpolicy",
        "address",
        "statu",
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "The id must match `^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`.",
            {"pattern": "[a-z]([a-z0-9-]{0,61}[a-z0-9])?"},
        ),
        (
            (
                "* Must contain only lowercase letters, numbers, and hyphens. * Must start with a letter. *"
                " Must be between 1-40 characters. * Must end with a number."
            ),
            {"pattern": "[a-z](?:[a-z0-9-]*[a-z0-9])?", "minLength": 1, "maxLength": 40},
        ),
        (
            "This value should be 4-63 characters, and valid characters are /a-z-/.",
            {"pattern": "[a-z0-9-][a-z0-9-]*", "minLength": 4, "maxLength": 63},
        ),
        ("Letters, numbers and hyphens, like in an e-mail address, are allowed.", {}),
        ("The name of the thing.", {}),
    ],
)
def test_the_rule_of_a_name_is_read_from_prose(text: str, rule: dict[str, object]) -> None:
    assert name_rule(text) == rule


@pytest.mark.parametrize(
    "file",
    sorted([*FACTS.glob("gcp/*.json"), *OPTIONAL.glob("gcp/*.json")]),
    ids=lambda file: f"{file.parent.name}-{file.stem}",
)
def test_a_file_of_facts_says_only_what_is_read(file: Path) -> None:
    assert faults(file) == []
    assert len(json.loads(file.read_text())["source"]) > 10


def test_every_fact_is_about_a_property_that_the_sdk_has() -> None:
    """The classes of a few modules; all of them would load the whole SDK."""
    import importlib

    from trainfleet.rehearsal.simulation.schema import inputs_of

    for module in ("redis", "pubsub", "dns"):
        held = json.loads((OPTIONAL / "gcp" / f"{module}.json").read_text())["types"]
        home = importlib.import_module(f"pulumi_gcp.{module}")
        for cls, properties in held.items():
            found = getattr(home, cls, None)
            if isinstance(found, type):
                assert set(properties) <= set(inputs_of(found)), cls
