"""What the rooms of every cloud share: names, tags and the options of production."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from trainfleet.errors import MissingToolError
from trainfleet.infra import component, tags
from trainfleet.infra.cloud_support import support
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.component import Room
from trainfleet.infra.spec.schema import PlatformSpec

BASE: dict[str, Any] = {"name": "lab", "cloud": "aws", "region": "us-east-2", "owner": "ml@example.com"}


def a_room(**changes: Any) -> Room:
    """A room that no engine knows of."""
    found = object.__new__(Room)
    found.spec = PlatformSpec.model_validate({**BASE, **changes})
    return found


@pytest.mark.parametrize(
    ("environment", "wish", "protect", "retain"),
    [
        ("prod", {"keep": True}, True, True),
        ("prod", {"guard": True}, True, None),
        ("prod", {}, None, None),
        ("dev", {"keep": True}, None, None),
        ("staging", {"guard": True}, None, None),
    ],
)
def test_data_and_keys_are_guarded_and_kept_in_production_only(
    environment: str, wish: dict[str, bool], protect: bool | None, retain: bool | None
) -> None:
    options = a_room(environment=environment).options("bucket", **wish)
    assert (options.protect, options.retain_on_delete) == (protect, retain)


def test_a_resource_with_a_new_name_is_still_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component, "RENAMED", {"bucket": "store"})
    (alias,) = a_room().options("bucket").aliases or ()
    assert alias.name == "lab-store"
    assert a_room().options("vpc").aliases is None


def test_no_tag_of_the_spec_hides_one_that_budgets_and_policies_read() -> None:
    spec = PlatformSpec.model_validate({**BASE, "tags": {"trainfleet:platform": "mine", "team": "speech"}})
    found = tags.tags(spec, "lab-vpc")
    assert set(tags.REQUIRED_TAGS) < set(found)
    assert found["trainfleet:platform"] == "lab"
    assert (found["team"], found["Name"]) == ("speech", "lab-vpc")


@pytest.mark.parametrize("cloud", Cloud)
def test_each_cloud_has_a_builder(cloud: Cloud) -> None:
    assert support(cloud).cloud is cloud
    assert support(cloud).builder().__name__ == "build"


def test_a_missing_sdk_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("trainfleet.infra.gcp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pulumi_gcp", None)
    with pytest.raises(MissingToolError, match="pulumi_gcp is not installed") as caught:
        support(Cloud.GCP).builder()
    assert "trainfleet[gcp]" in caught.value.problems[0].fix
