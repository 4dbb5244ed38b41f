"""A mistake in a bootstrap spec is named with its place, what is wrong and what would be right."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.bootstrap.specs import CLOUDS, ROOT, STACKS, document, spec_of
from trainfleet.errors import InputError
from trainfleet.infra.bootstrap.schema import parse_bootstrap


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_stacks_of_this_project_are_valid(cloud: str) -> None:
    assert spec_of(cloud).cloud == cloud


@pytest.mark.parametrize(
    ("cloud", "change", "where", "what"),
    [
        ("aws", {"github": None, "gitlab": None}, "github", "no CI system is named"),
        ("aws", {"platforms": ["ci"]}, "platforms[0]", "CI could change its own permissions"),
        ("aws", {"name": "prod-ci", "platforms": ["prod"]}, "platforms[0]", "CI could change its own"),
        ("aws", {"platforms": []}, "platforms", ""),
        ("aws", {"public_ranges": ["192.0.2.0/24"]}, "public_ranges", "is an option of azure"),
        ("gcp", {"options": ["hyperpod"]}, "options", "is an option of aws"),
        ("azure", {"public_ranges": []}, "public_ranges", "is empty"),
        ("gcp", {"permission_boundary": "arn:aws:iam::111122223333:policy/b"}, "permission_boundary", "aws"),
        ("aws", {"regoin": "x"}, "regoin", "unknown key"),
    ],
)
def test_a_mistake_is_named(cloud: str, change: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(InputError) as error:
        spec_of(cloud, **change)
    assert [each for each in error.value.problems if each.where.startswith(where) and what in each.what]


@pytest.mark.parametrize(
    ("cloud", "part", "change", "what"),
    [
        ("azure", "github", {"subject": "default"}, "names no branch"),
        ("aws", "gitlab", {"subject": "default"}, "names no environment"),
        ("azure", "gitlab", {"subject": "default"}, "names no environment"),
        ("aws", "github", {"repository": "example-org/*"}, ""),
        ("aws", "github", {"environments": ["*"]}, ""),
        ("aws", "github", {"environments": ["a:ref:refs"]}, ""),
        ("aws", "github", {"branch": "release/*"}, ""),
        ("aws", "github", {"subject_prefix": "repo:other"}, ""),
        ("aws", "gitlab", {"project": "group*/platforms"}, ""),
        ("gcp", "github", {"existing_provider": "arn:aws:iam::111122223333:oidc-provider/x"}, "of aws"),
    ],
)
def test_no_value_widens_the_trust(cloud: str, part: str, change: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError) as error:
        spec_of(cloud, **{part: {**document(cloud)[part], **change}})
    (name,) = change
    assert [each for each in error.value.problems if each.where == f"{part}.{name}" and what in each.what]


@pytest.mark.parametrize(
    ("cloud", "who"), [("aws", "alice@example.com"), ("gcp", "alice"), ("azure", "alice@example.com")]
)
def test_people_are_named_as_the_cloud_names_them(cloud: str, who: str) -> None:
    with pytest.raises(InputError, match=r"break_glass.people\[0\].*names nobody"):
        spec_of(cloud, break_glass={"people": [who], "alert": ["a@example.com"]})


def test_every_mistake_is_reported_at_once_with_the_file() -> None:
    with pytest.raises(InputError, match="3 mistakes") as error:
        parse_bootstrap(
            {**document("azure"), "public_ranges": [], "platforms": ["ci"], "options": ["hyperpod"]}, "f"
        )
    assert all(each.where.startswith("f ") for each in error.value.problems)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_an_editor_accepts_the_stacks_and_rejects_a_misspelt_key(cloud: str) -> None:
    file = STACKS / "bootstrap.schema.json"
    validator = Draft202012Validator(json.loads(file.read_text(encoding="utf-8")))
    stack = yaml.safe_load((STACKS / f"Pulumi.bootstrap-{cloud}.yaml").read_text(encoding="utf-8"))
    assert [each.message for each in validator.iter_errors(stack)] == []
    stack["config"]["trainfleet:bootstrap"]["plattforms"] = []
    assert any("plattforms" in each.message for each in validator.iter_errors(stack))


def test_a_message_says_what_a_field_is_for() -> None:
    with pytest.raises(InputError, match=r"github.repository_id: is missing \(`gh api repos/OWNER/NAME"):
        spec_of("aws", github={"repository": "example-org/platforms"})


def test_the_clouds_look_alike() -> None:
    files = {
        cloud: {file.name for file in (ROOT / "infra" / "bootstrap" / cloud).glob("*.*")} for cloud in CLOUDS
    }
    common = {"__init__.py", "build.py", "state.py", "identities.py", "break_glass.py", "permissions.toml"}
    own = {"aws": {"documents.py"}, "gcp": {"conditions.py"}, "azure": {"conditions.py"}}
    assert files == {cloud: common | own[cloud] for cloud in CLOUDS}
