"""Rows of azure-native from Azure's management packages: on a small package, and facts of the table that ships."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.knowledge import azure_match
from tools.knowledge.azure import rows
from tools.knowledge.azure_models import Models, by_namespace, read_wheel
from trainfleet.rehearsal.simulation.replacement import Effect, effects, source
from trainfleet.rehearsal.simulation.schema import Kind, Package, Property, ResourceType

TOKEN = "azure-native:toys:Robot"
MODELS = """
class TrackedResource(_Model):
    location: str = rest_field(visibility=["read", "create"])
    tags: Optional[dict[str, str]] = rest_field(visibility=["read", "create", "update", "delete", "query"])
    id: Optional[str] = rest_field(visibility=["read"])

class Robot(TrackedResource):
    properties: Optional["_models.RobotProperties"] = rest_field(visibility=["read", "create", "update"])

class RobotProperties(_Model):
    disk_size: Optional[int] = rest_field(name="diskSize", visibility=["read", "create", "update"])
    serial_number: Optional[str] = rest_field(name="serialNumber", visibility=["read", "create"])
    start_key: Optional[str] = rest_field(name="startKey", visibility=["create"])
    arm: Optional["_models.Arm"] = rest_field(visibility=["read", "create", "update"])
    state: Optional[str] = rest_field(visibility=["read"])
    silent: Optional[str] = rest_field()

class Arm(_Model):
    side: Optional[str] = rest_field(visibility=["read", "create"])
"""
OPERATIONS = """
def build_robots_create_or_update_request(resource_group_name, robot_name, **kwargs):
    api_version = kwargs.pop("api_version", _params.pop("api-version", "2026-01-01"))
    _url = "/subscriptions/{subscriptionId}/resourceGroups/{resourceGroupName}/providers/Microsoft.Toys/robots/{robotName}"
    return HttpRequest(method="PUT", url=_url)

class RobotsOperations:
    def _create_or_update_initial(
        self, color: Union[str, _models.Color], robot_name: str, resource: Union[_models.Robot, IO[bytes]]
    ):
        _request = build_robots_create_or_update_request(resource_group_name, robot_name)
"""


@dataclass(frozen=True)
class OneType(Package):
    """A package with one type, of whose SDK class nothing is needed."""

    type: ResourceType | None = None

    def resource(self, token: str) -> ResourceType | None:
        return self.type


def wheel(folder: Path, models: str = MODELS) -> Path:
    file = folder / "azure_mgmt_toys-2.0.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as made:
        for name, text in {
            "azure/mgmt/toys/models/_models.py": models,
            "azure/mgmt/toys/operations/_operations.py": OPERATIONS,
            "azure_mgmt_toys-2.0.0.dist-info/METADATA": "Name: azure-mgmt-toys\nVersion: 2.0.0\n",
        }.items():
            made.writestr(zipfile.ZipInfo(name, (2026, 3, 4, 0, 0, 0)), text)
    return file


def package(*inputs: str) -> Package:
    text = Property(Kind("string"), required=False)
    given = ResourceType(TOKEN, dict.fromkeys(("resourceGroupName", "robotName", *inputs), text), {})
    return OneType("azure-native", "1.0.0", "toys", {TOKEN: ("toys", "Robot")}, given)


ALL = ("location", "tags", "diskSize", "serialNumber", "startKey", "arm", "state", "silent", "newer")


def test_only_top_level_properties_that_creation_takes_replace(tmp_path: Path) -> None:
    """`arm.side` is create-only too: the provider updates what is below the top level (properties.go)."""
    row = rows(package(*ALL), {}, {}, by_namespace(read_wheel(wheel(tmp_path))))[TOKEN]
    assert row.replace == ("location", "resourceGroupName", "robotName", "serialNumber", "startKey")
    assert set(row.unclear) == {"newer", "silent", "state"}
    assert row.file == "with azure-mgmt-toys 2.0.0, 2026-03-04, API 2026-01-01"


def test_the_lists_of_the_provider_go_before_the_model(tmp_path: Path) -> None:
    operations = by_namespace(read_wheel(wheel(tmp_path)))
    force, never = {"Toys": {"Robot": ["diskSize"]}}, {"Toys": {"Robot": ["serialNumber"]}}
    row = rows(package(*ALL), force, never, operations)[TOKEN]
    assert "diskSize" in row.replace
    assert "serialNumber" not in {*row.replace, *row.unclear}


def test_a_package_without_visibility_says_nothing(tmp_path: Path) -> None:
    without = "class Robot(_Model):\n    location: str = rest_field()\n"
    read = read_wheel(wheel(tmp_path, without))
    assert not read
    row = rows(package(*ALL), {}, {}, by_namespace(read))[TOKEN]
    assert (row.replace, row.unclear) == (("resourceGroupName", "robotName"), {"*": "not read"})


def test_a_model_that_has_less_than_half_of_the_inputs_is_another_resource(tmp_path: Path) -> None:
    operations = by_namespace(read_wheel(wheel(tmp_path)))
    row = rows(package("tags", "a", "b"), {}, {}, operations)[TOKEN]
    assert row.unclear == {"*": "not read"}


def test_properties_are_not_flattened_if_the_sdk_has_them_in_one(tmp_path: Path) -> None:
    row = rows(package("location", "properties"), {}, {}, by_namespace(read_wheel(wheel(tmp_path))))[TOKEN]
    assert row.replace == ("location", "resourceGroupName", "robotName")
    assert not row.unclear


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ManagedClusters", "ManagedCluster"),
        ("GeoBackupPolicies", "GeoBackupPolicy"),
        ("WebAppsAuthSettings", "WebAppAuthSettings"),
        ("PublicIPAddresses", "PublicIPAddress"),
    ],
)
def test_a_type_has_the_name_of_its_operation_group(one: str, other: str) -> None:
    assert azure_match.comparable(one) == azure_match.comparable(other)


def test_inherited_properties_are_a_models_own(tmp_path: Path) -> None:
    (read,) = read_wheel(wheel(tmp_path))
    assert isinstance(read, Models)
    assert read.all_fields("Robot")["location"].visibility == {"read", "create"}


@pytest.mark.parametrize(
    ("token", "name", "effect"),
    [
        ("azure-native:containerservice:ManagedCluster", "location", Effect.REPLACE),
        ("azure-native:containerservice:ManagedCluster", "kubernetesVersion", Effect.UPDATE),
        ("azure-native:privatedns:PrivateZone", "location", Effect.REPLACE),
        ("azure-native:compute:Disk", "diskSizeGB", Effect.UPDATE),
        ("azure-native:app:ContainerApp", "managedEnvironmentId", Effect.REPLACE),
        ("azure-native:dbforpostgresql:Server", "administratorLogin", Effect.REPLACE),
        ("azure-native:dbforpostgresql:Server", "version", Effect.UPDATE),
        ("azure-native:sql:Server", "administratorLoginPassword", Effect.UPDATE),
        ("azure-native:storage:FileShare", "enabledProtocols", Effect.REPLACE),
        ("azure-native:web:AppServicePlan", "hyperV", Effect.REPLACE),
        ("azure-native:elasticsan:ElasticSan", "baseSizeTiB", Effect.UPDATE),
        ("azure-native:databricks:Workspace", "computeMode", Effect.REPLACE),
    ],
)
def test_the_table_says_what_the_model_of_the_api_says(token: str, name: str, effect: Effect) -> None:
    assert list(effects(token, {name: "a"}, {name: "b"}).values()) == [effect]
    assert "azure-mgmt-" in source(token)
