"""The base class of components: names, tags and the options of production."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from trainfleet.errors import MissingToolError
from trainfleet.infra import tags
from trainfleet.infra.cloud_support import support
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

BASE: dict[str, Any] = {"name": "lab", "cloud": "aws", "region": "us-east-2", "owner": "ml@example.com"}


def a_component(**changes: Any) -> PlatformComponent:
    """A component that is not registered with an engine."""
    found = object.__new__(PlatformComponent)
    found.spec = PlatformSpec.model_validate({**BASE, **changes})
    return found


@pytest.mark.parametrize(
    ("environment", "requested", "protect", "retain"),
    [
        ("prod", {"retain": True}, True, True),
        ("prod", {"protect": True}, True, None),
        ("prod", {}, None, None),
        ("dev", {"retain": True}, None, None),
        ("staging", {"protect": True}, None, None),
    ],
)
def test_data_and_keys_are_protected_and_retained_in_production_only(
    environment: str, requested: dict[str, bool], protect: bool | None, retain: bool | None
) -> None:
    options = a_component(environment=environment).options(**requested)
    assert (options.protect, options.retain_on_delete) == (protect, retain)


def test_a_renamed_resource_keeps_its_former_names() -> None:
    (alias,) = a_component().options(former_names=["store"]).aliases or ()
    assert alias.name == "lab-store"
    assert a_component().options().aliases is None


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
