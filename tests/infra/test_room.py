"""What the rooms of every cloud share: names, tags and the options of production."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.infra import component, tags
from trainfleet.infra.clouds import CLOUDS, builder
from trainfleet.infra.component import Room
from trainfleet.infra.spec.schema import Cloud, PlatformSpec

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


@pytest.mark.parametrize("cloud", CLOUDS)
def test_each_cloud_has_a_builder(cloud: Cloud) -> None:
    assert builder(cloud).__name__ == "build"


@pytest.mark.parametrize("cloud", [cloud for cloud in Cloud if cloud not in CLOUDS])
def test_a_cloud_of_a_later_release_says_so(cloud: Cloud) -> None:
    with pytest.raises(InputError, match="comes with a later release"):
        builder(cloud)
