"""Rows of azure-native from Azure's management packages: address, create-only, API version, and nested types."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.knowledge import azure
from tools.knowledge.azure_models import Resource, read, singular
from trainfleet.rehearsal.simulation.replacement import split_path, table
from trainfleet.rehearsal.simulation.schema import Kind, Property, ResourceType

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK warns of its own old types
TEXT = Kind("string")
MODELS = """
class Resource(_Model):
    name: Optional[str] = rest_field(visibility=["read"])

class TrackedResource(Resource):
    tags: Optional[dict[str, str]] = rest_field(visibility=["read", "create", "update", "delete", "query"])
    location: str = rest_field(visibility=["read", "create"])

class Widget(TrackedResource):
    properties: Optional["_models.WidgetProperties"] = rest_field(visibility=["read", "create", "update"])

class WidgetProperties(_Model):
    state: Optional[str] = rest_field(visibility=["read"])
    kind_of: Optional[str] = rest_field(name="kindOf", visibility=["read", "create"])
    password: Optional[str] = rest_field(visibility=["create", "update"])
    network: Optional["_models.Network"] = rest_field(visibility=["read", "create", "update"])

class Network(_Model):
    plugin: Optional[str] = rest_field(visibility=["read", "create"])
"""
OPERATIONS = """
def build_widgets_get_request(group: str, **kwargs: Any) -> HttpRequest:
    api_version = kwargs.pop("api_version", "2026-01-01")
    _url = "/subscriptions/{subscriptionId}/resourceGroups/{resourceGroupName}/providers/Microsoft.Shop/widgets/{name}"
    return HttpRequest(method="GET", url=_url)

def build_widgets_create_or_update_request(group: str, **kwargs: Any) -> HttpRequest:
    api_version = kwargs.pop("api_version", "2026-01-01")
    _url = "/subscriptions/{subscriptionId}/resourceGroups/{resourceGroupName}/providers/Microsoft.Shop/widgets/{name}"
    return HttpRequest(method="PUT", url=_url)

class WidgetsOperations:
    def get(self, group: str, name: str) -> _models.Widget:
        return build_widgets_get_request(group)

    def begin_create_or_update(self, group: str, name: str, body: Union[_models.Widget, IO[bytes]]) -> None:
        return build_widgets_create_or_update_request(group)
"""


@pytest.fixture
def widget(tmp_path: Path) -> Resource:
    """The one resource of a package."""
    package = tmp_path / "azure" / "mgmt" / "shop"
    for name, text in (
        ("models/_models.py", MODELS),
        ("operations/_operations.py", OPERATIONS),
        ("_version.py", 'VERSION = "1.2.3"\n'),
    ):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    (found,) = read(tmp_path)
    return found


def sdk(*inputs: str, module: str = "shop") -> ResourceType:
    """The type of the SDK with these inputs."""
    return ResourceType(f"azure-native:{module}:Widget", {name: Property(TEXT, False) for name in inputs}, {})


WHOLE = ("resourceGroupName", "name", "location", "tags", "kindOf", "password", "network")


def test_a_put_operation_says_address_version_and_what_is_create_only(widget: Resource) -> None:
    assert (widget.namespace, widget.api_version, widget.source) == (
        "shop",
        "2026-01-01",
        "azure-mgmt-shop 1.2.3",
    )
    assert widget.parameters == {"resourcegroupname", "name"}
    assert "widget" in widget.names
    assert {name for name, each in widget.fields.items() if each.create_only} == {"location"}
    assert {name for name, each in widget.properties.items() if each.create_only} == {"kindOf"}
    assert {name for name, each in widget.properties.items() if each.read_only} == {"state"}


def test_the_address_and_create_only_properties_of_the_resource_itself_replace(widget: Resource) -> None:
    """A create-only property of a nested type does not: the provider updates what holds it (properties.go)."""
    row = azure.read_row(sdk(*WHOLE), widget)
    assert row == {"resourceGroupName", "name", "location", "kindOf"}


def test_a_type_is_what_has_its_api_version_namespace_address_and_every_input(widget: Resource) -> None:
    assert azure.match(sdk(*WHOLE), "2026-01-01", [widget]) == widget
    assert azure.match(sdk(*WHOLE), "2025-12-01", [widget]) is None
    assert azure.match(sdk(*WHOLE, module="store"), "2026-01-01", [widget]) is None
    assert azure.match(sdk(*WHOLE, "another"), "2026-01-01", [widget]) is None
    assert azure.match(sdk(*WHOLE, "state"), "2026-01-01", [widget]) is None
    assert azure.match(sdk(*(set(WHOLE) - {"resourceGroupName"})), "2026-01-01", [widget]) is None
    other = replace(widget, properties={})
    assert azure.match(sdk("resourceGroupName", "name", "tags"), "2026-01-01", [widget, other]) is None, (
        "two that say different things"
    )


def test_names_are_singular() -> None:
    assert [singular(name) for name in ("Policies", "Addresses", "Indexes", "ProxyAccess", "Sites")] == [
        "policy",
        "address",
        "index",
        "proxyaccess",
        "site",
    ]


FACTS = {
    "azure-native:web:AppServicePlan": (("reserved", "hyperV", "name"), ("sku.name", "kind")),
    "azure-native:web:WebApp": (("kind", "location", "name"), ("siteConfig.linuxFxVersion", "httpsOnly")),
    "azure-native:servicebus:Queue": (("requiresSession", "enablePartitioning"), ("lockDuration",)),
    "azure-native:servicebus:Namespace": (("namespaceName", "location"), ("zoneRedundant", "sku.name")),
    "azure-native:databricks:Workspace": (("workspaceName",), ("publicNetworkAccess",)),
    "azure-native:datafactory:Factory": (("factoryName",), ("publicNetworkAccess",)),
    "azure-native:containerservice:ManagedCluster": (
        ("dnsPrefix", "networkProfile.networkPlugin", "nodeResourceGroup"),
        ("networkProfile.advancedNetworking.enabled", "kubernetesVersion"),
    ),
    "azure-native:containerservice:AgentPool": (("vmSize",), ("count",)),
    "azure-native:storage:StorageAccount": (("isHnsEnabled", "location"), ("accessTier",)),
}
"""What replaces and what is updated in place: forceNewMap, noForceNewMap and issue 4756 of pulumi-azure-native, and
Azure's API reference ("reserved", "hyperV": create and read only)."""


@pytest.mark.parametrize("token", FACTS)
def test_well_known_facts(token: str) -> None:
    forced, in_place = FACTS[token]
    rule = table()[token]

    def nothing(_: object) -> tuple[None, None]:
        return None, None

    assert {path: str(rule.effect(split_path(path), nothing)) for path in (*forced, *in_place)} == {
        **dict.fromkeys(forced, "replace"),
        **dict.fromkeys(in_place, "update"),
    }


def test_a_type_of_another_api_version_stays_not_read() -> None:
    assert () in table()["azure-native:dbforpostgresql:Server"].unclear
