"""The gatherers of facts about Google Cloud and Azure read what is certain and leave the rest; the rules between properties are applied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rehearsal.clouds.facts import FACTS, faults
from rehearsal.clouds.facts.bicep import Types
from rehearsal.clouds.facts.discovery import facts, normal, read_apis
from rehearsal.clouds.facts.golang import Node, declarations, returned
from rehearsal.clouds.facts.naming import name_rule
from rehearsal.clouds.facts.providers import read_services, whole
from rehearsal.clouds.facts.relations import gathered_rows
from rehearsal.clouds.provider import HABITS
from rehearsal.clouds.schema import packages

SOURCE = """
package thing

var modes = []string{"FAST", "SLOW"}

func init() {
	registry.Schema{
		Name: "google_thing", ProductName: "thing",
		Type: registry.SchemaTypeResource,
		Schema: ResourceThing(),
	}.Register()
}

func ResourceThing() *schema.Resource {
	return &schema.Resource{
		Timeouts: &schema.ResourceTimeout{Create: schema.DefaultTimeout(20 * time.Minute)},
		Schema: map[string]*schema.Schema{
			"mode": {Type: schema.TypeString, Optional: true, ValidateFunc: validation.StringInSlice(modes, false)},
			"level": {Type: schema.TypeString, Optional: true, ValidateFunc: verify.ValidateEnum([]string{"A", "B", ""})},
			"count": {Type: schema.TypeInt, Required: true, ValidateFunc: validation.IntBetween(1, 9), ConflictsWith: []string{"box.0.size"}},
			"policy": {Type: schema.TypeString, Optional: true, ValidateFunc: validation.StringIsJSON},
			"box": schemaBox(),
			// "gone": {Type: schema.TypeInt},
		},
	}
}

func schemaBox() *schema.Schema {
	return &schema.Schema{
		Type: schema.TypeList, Optional: true, MaxItems: 3,
		Elem: &schema.Resource{Schema: map[string]*schema.Schema{
			"size": {Type: schema.TypeInt, Optional: true, ExactlyOneOf: []string{"box.0.size", "box.0.weight"}},
			"weight": {Type: schema.TypeInt, Optional: true, ValidateFunc: func(v interface{}, k string) (ws []string, es []error) { return }},
			"when": {Type: schema.TypeString, Optional: true, ValidateFunc: verify.ValidateRegexp(`^[a-z]+$`)},
		}},
	}
}
"""


def test_a_schema_in_go_is_read_with_its_functions_and_variables(tmp_path: Path) -> None:
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "resource_thing.go").write_text(SOURCE)
    fields = read_services(tmp_path)["google_thing"].fields
    assert {name: field.facts for name, field in fields.items()} == {
        "mode": {"values": ["FAST", "SLOW"]},
        "level": {"values": ["A", "B"]},
        "count": {"range": [1, 9]},
        "policy": {"json": True},
        "box": {"count": [None, 3]},
    }
    assert {name: field.facts for name, field in fields["box"].fields.items()} == {"size": {}, "weight": {}, "when": {"pattern": "[a-z]+"}}
    assert fields["count"].relations == {"at_most_one": ["box.0.size"]}
    assert fields["box"].fields["size"].relations == {"exactly_one": ["box.0.size", "box.0.weight"]}


def test_a_value_of_go_keeps_its_kind() -> None:
    body = dict(declarations('func f() X { return X{a: -2, b: 1.5, c: "x" + "y", d: true, e: g(1), f: []int{1, 2}} }'))["f"]
    literal = next(returned(body))
    assert [literal.get(name) for name in "abcd"] == [-2, 1.5, "xy", True]
    assert (literal.get("e").name, literal.get("f").values()) == ("g", [1, 2])
    assert isinstance(literal.get("e"), Node)


@pytest.mark.parametrize(
    ("searched", "right", "wrong"),
    [("^[a-z]+$", "abc", "abc1"), ("^a|b$", "ax", "xa"), ("[0-9]", "a1a", "abc"), ("^a$|^b$", "b", "ab")],
)
def test_a_search_becomes_an_expression_for_the_whole_text(searched: str, right: str, wrong: str) -> None:
    import re

    expression = whole(searched)["pattern"]
    assert re.fullmatch(expression, right)
    assert not re.fullmatch(expression, wrong)


def test_an_expression_that_python_does_not_know_is_left_out() -> None:
    assert whole(r"^\p{L}+$") == {}


def document(version: str, *values: str) -> dict[str, object]:
    thing = {"modes": {"type": "array", "items": {"type": "string", "enum": list(values)}}, "ttl": {"type": "string", "format": "google-duration"}}
    create = {"httpMethod": "POST", "request": {"$ref": "Thing"}, "parameters": {"thingId": {"location": "query", "description": "`[a-z]{3,9}`"}}}
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
    assert facts([entry["mode"] for entry in entries], number=False) == {"values": ["A", "B"]}
    assert "pattern" in facts([entry["ttl"] for entry in entries], number=False)
    assert api.ids[0] == {"Thing": {"thingid": "`[a-z]{3,9}`"}}
    assert (normal("allow_policies"), normal("Addresses"), normal("status")) == ("allowpolicy", "address", "statu")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("The id must match `^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`.", {"pattern": "[a-z]([a-z0-9-]{0,61}[a-z0-9])?"}),
        (
            "* Must contain only lowercase letters, numbers, and hyphens. * Must start with a letter. * Must be between 1-40 characters. * Must end with a number.",
            {"pattern": "[a-z](?:[a-z0-9-]*[a-z0-9])?", "length": [1, 40]},
        ),
        ("This value should be 4-63 characters, and valid characters are /a-z-/.", {"pattern": "[a-z0-9-][a-z0-9-]*", "length": [4, 63]}),
        ("Letters, numbers and hyphens, like in an e-mail address, are allowed.", {}),
        ("The name of the thing.", {}),
    ],
)
def test_the_rule_of_a_name_is_read_from_prose(text: str, rule: dict[str, object]) -> None:
    assert name_rule(text) == rule


TYPES = [
    {"$type": "StringType", "minLength": 3, "maxLength": 24, "pattern": "^[a-z]+$"},
    {"$type": "IntegerType", "minValue": 1, "maxValue": 65535},
    {"$type": "StringLiteralType", "value": "A"},
    {"$type": "StringType"},
    {"$type": "UnionType", "elements": [{"$ref": "#/2"}, {"$ref": "#/3"}]},
    {"$type": "ArrayType", "itemType": {"$ref": "#/4"}, "maxLength": 5},
    {
        "$type": "ObjectType",
        "name": "Properties",
        "properties": {"port": {"type": {"$ref": "#/1"}, "flags": 0}, "made": {"type": {"$ref": "#/3"}, "flags": 2}},
    },
    {
        "$type": "ObjectType",
        "name": "Thing",
        "properties": {
            "name": {"type": {"$ref": "#/0"}, "flags": 9},
            "kinds": {"type": {"$ref": "#/5"}, "flags": 0},
            "properties": {"type": {"$ref": "#/6"}, "flags": 0},
        },
    },
    {"$type": "ResourceType", "name": "Microsoft.Thing/things@2025-01-01", "body": {"$ref": "#/7"}},
]


def test_types_of_bicep_are_read_with_their_properties_drawn_out(tmp_path: Path) -> None:
    folder = tmp_path / "thing" / "microsoft.thing" / "2025-01-01"
    folder.mkdir(parents=True)
    (folder / "types.json").write_text(json.dumps(TYPES))
    properties = Types(tmp_path).resources("microsoft.thing", "2024-12-01")["things"].properties()
    assert set(properties) == {"name", "kinds", "properties", "port"}
    assert properties["name"].facts() == {"length": [3, 24], "pattern": "[a-z]+"}
    assert properties["kinds"].facts() == {"values": ["A"], "open": True, "count": [None, 5]}
    assert properties["port"].facts() == {"range": [1, 65535]}


@pytest.mark.parametrize(
    "file", sorted([*FACTS.glob("gcp/*.json"), *FACTS.glob("azure_native/*.json")]), ids=lambda file: f"{file.parent.name}-{file.stem}"
)
def test_a_file_of_facts_says_only_what_is_read(file: Path) -> None:
    assert faults(file) == []
    assert len(json.loads(file.read_text())["source"]) > 10


def test_every_fact_is_about_a_property_that_the_sdk_has() -> None:
    """The classes of a few modules; all of them would load the whole SDK."""
    import importlib

    from rehearsal.clouds.schema import inputs_of

    for package, modules in (("gcp", ("redis", "pubsub", "dns")), ("azure_native", ("keyvault", "containerservice", "redis"))):
        for module in modules:
            held = json.loads((FACTS / package / f"{module}.json").read_text())["types"]
            home = importlib.import_module(f"pulumi_{package}.{module}")
            for cls, properties in held.items():
                found = getattr(home, cls, None)
                if isinstance(found, type):
                    assert set(properties) <= set(inputs_of(found)), cls


def test_gathered_rules_are_applied() -> None:
    assert gathered_rows("gcp", "storage/insightsReportConfig:InsightsReportConfig")
    assert gathered_rows("gcp", "none/such:Type") == ()
    inputs = {"location": "us-central1", "bucketName": "b", "predefinedAcl": "private", "roleEntities": ["OWNER:user-a@b.c"], "bucket": "b"}
    found = HABITS["gcp"].check(packages()["gcp"], "gcp:storage/bucketACL:BucketACL", inputs)
    assert any("conflicts with" in str(mistake) for mistake in found)
