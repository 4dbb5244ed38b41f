"""How long the buckets keep what training replaced or deleted: the declared rules, evaluated as each cloud
documents them, for the objects that the trainer writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest
from pulumi.runtime import mocks

from tests.infra.aws.platforms import SMALL as AWS
from tests.infra.azure.platforms import SMALL as AZURE
from tests.infra.gcp.platforms import SMALL as GCP
from trainfleet.infra.aws import storage as aws_storage
from trainfleet.infra.azure import storage as azure_storage
from trainfleet.infra.gcp import storage as gcp_storage
from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.training.checkpoint.retention import step_name
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.runs.schema import MARKER
from trainfleet.training.runs.storage import checkpoints_url
from trainfleet.training.stores.conditional_clouds import _key as key_of
from trainfleet.training.stores.lease import HEARTBEAT_S, LEASE
from trainfleet.training.stores.urls import parse

CLOUDS = ("aws", "gcp", "azure")
DAY_S = 24 * 3600
CHECKPOINT_GB, CHECKPOINT_EVERY_S = 96, 1800
"""The example of docs/clouds.md."""
BASES = {"aws": AWS, "gcp": GCP, "azure": AZURE}
ALREADY_OLD = 400
"""Days for which a data set was current: longer than any period."""


class _Recorder(mocks.Mocks):
    def __init__(self) -> None:
        self.inputs: dict[str, dict[str, Any]] = {}

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        self.inputs[args.name] = args.inputs
        given = {"bucket": args.name, "name": args.name, "arn": args.name}
        if args.typ == "azure-native:storage:StorageAccount":
            # Azure returns identities in another form than it takes them.
            return "account-id", {"name": args.inputs["accountName"], "identity": {"type": "UserAssigned"}}
        if args.typ == "azure-native:storage:BlobContainer":
            given["name"] = args.inputs["containerName"]
        return f"{args.name}-id", given | args.inputs

    def call(self, args: mocks.MockCallArgs) -> dict[str, Any]:
        raise AssertionError(f"storage asks a provider: {args.token}")


@dataclass
class Declared:
    """The storage of a platform: inputs by logical name, and the URL of runs that the contract hands out."""

    cloud: str
    inputs: dict[str, dict[str, Any]]
    url: str = ""


def declared(cloud: str, **storage: Any) -> Declared:
    """The storage that a platform declares with these settings of `storage`."""
    spec = parse_spec({**BASES[cloud], "storage": storage}, "test")
    asyncio.set_event_loop(asyncio.new_event_loop())
    recorder = _Recorder()
    mocks.set_mocks(recorder, project="storage", stack="test")
    made = Declared(cloud, recorder.inputs)

    @pulumi.runtime.test
    def program() -> pulumi.Output[None]:
        return _component(spec).url.apply(lambda url: setattr(made, "url", url))

    program()
    return made


def _component(spec: PlatformSpec) -> Any:
    key: Any = SimpleNamespace(arn="key", id="key")
    keys: Any = SimpleNamespace(
        data=key, ready=[], data_name="key", vault=SimpleNamespace(properties=SimpleNamespace(vault_uri="v"))
    )
    if spec.cloud == "aws":
        return aws_storage.Storage(spec, keys, "111122223333")
    if spec.cloud == "gcp":
        return gcp_storage.Storage(spec, keys)
    trainer = SimpleNamespace(id="trainer", principal_id="trainer")
    around: Any = SimpleNamespace(
        data=SimpleNamespace(name="group", id="identity"),
        global_name=lambda what: f"lab{what}",
        endpoint=lambda *_: None,
        pods={"training": SimpleNamespace(identity=trainer)},
        send_diagnostics=lambda *_: None,
    )
    return azure_storage.Storage(spec, keys, group=around, network=around, identity=around, workspace=around)


@dataclass(frozen=True)
class Version:
    """An object's content: written on day 0, replaced or deleted on day `replaced`; None = current."""

    path: str
    """Container or nothing, then the key, as prefixes of rules see it."""
    replaced: int | None


def gone(storage: Declared, version: Version) -> int | None:
    """The day after which nobody can restore this content any more; None if that never comes."""
    days = {"aws": _s3_gone, "gcp": _gcs_gone, "azure": _azure_gone}[storage.cloud](storage.inputs, version)
    return min(days, default=None)


def _s3_gone(inputs: Mapping[str, Any], version: Version) -> Iterable[int]:
    """S3 user guide, lifecycle configuration elements: a noncurrent version is deleted for good this many days
    after it was replaced, by the shortest of the rules with its prefix; `expiration.days` is about current
    objects.
    """
    versioned = inputs["lab-bucket-versioning"]["versioningConfiguration"]["status"] == "Enabled"
    if version.replaced is not None and not versioned:
        yield version.replaced
    for rule in inputs["lab-bucket-lifecycle"]["rules"]:
        if rule["status"] != "Enabled" or not version.path.startswith(rule["filter"]["prefix"]):
            continue
        if version.replaced is None and "days" in rule.get("expiration", {}):
            yield rule["expiration"]["days"]
        elif version.replaced is not None and "noncurrentVersionExpiration" in rule:
            yield version.replaced + rule["noncurrentVersionExpiration"]["noncurrentDays"]


def _gcs_gone(inputs: Mapping[str, Any], version: Version) -> Iterable[int]:
    """Cloud Storage guide, lifecycle and soft delete: all conditions of a rule must hold, any rule is enough;
    what a rule or, without versions, anyone deletes is soft-deleted.
    """
    bucket = inputs["lab-bucket"]
    soft = int(bucket["softDeletePolicy"]["retentionDurationSeconds"]) // DAY_S
    if version.replaced is not None and not bucket["versioning"]["enabled"]:
        yield version.replaced + soft
    for rule in bucket["lifecycleRules"]:
        condition = rule["condition"]
        states = {"LIVE": (True,), "ARCHIVED": (False,)}.get(condition.get("withState", "ANY"), (True, False))
        prefixes = condition.get("matchesPrefixes", [""])
        if rule["action"]["type"] != "Delete" or (version.replaced is None) not in states:
            continue
        if version.path.startswith(tuple(prefixes)):
            noncurrent = condition.get("daysSinceNoncurrentTime")
            assert (noncurrent is None) == (version.replaced is None), "GCS has no such time for live objects"
            yield soft + (condition["age"] if version.replaced is None else version.replaced + noncurrent)


def _azure_gone(inputs: Mapping[str, Any], version: Version) -> Iterable[int]:
    """Blob Storage documentation, structure of lifecycle policies: the age of a version counts from the day on
    which it was written. Soft delete: it keeps the versions that are deleted; without versions (and with
    folders) blobs that are deleted.
    """
    service, policy = inputs["lab-bucket-settings"], inputs["lab-bucket-lifecycle"]["policy"]
    soft = service["deleteRetentionPolicy"]["days"] if service["deleteRetentionPolicy"]["enabled"] else 0
    if version.replaced is not None and not service["isVersioningEnabled"]:
        yield version.replaced + soft
    for rule in policy["rules"]:
        definition = rule["definition"]
        if not version.path.startswith(tuple(definition["filters"].get("prefixMatch", [""]))):
            continue
        if version.replaced is None and "baseBlob" in definition["actions"]:
            yield soft
        elif version.replaced is not None and "version" in definition["actions"]:
            age = definition["actions"]["version"]["delete"]["daysAfterCreationGreaterThan"]
            yield max(age, version.replaced) + soft


def kept(storage: Declared, version: Version) -> int | None:
    """Days for which a replaced or deleted content can be restored."""
    assert version.replaced is not None
    last = gone(storage, version)
    return None if last is None else last - version.replaced


def _path(cloud: str, url: str, key: str) -> str:
    """What a rule's prefix is compared with: Azure puts the container before the key."""
    place = parse(url)
    return f"{place.bucket}/" * (cloud == "azure") + key_of(place, key)


def of_training(storage: Declared) -> dict[str, Version]:
    """What training rewrites and rotates, by its own names, below the URL that the platform hands out."""
    recipe = load_recipe("lm-tiny", [f"storage={storage.url}"])
    checkpoints = checkpoints_url(recipe, recipe.run_dir())
    return {
        "lease": Version(_path(storage.cloud, recipe.home_url(), LEASE), replaced=0),
        "checkpoint": Version(_path(storage.cloud, checkpoints, f"{step_name(100)}/{MARKER}"), replaced=1),
        "best checkpoint": Version(
            _path(storage.cloud, checkpoints, f"{step_name(50)}/{MARKER}"), replaced=ALREADY_OLD
        ),
    }


DATA = {"aws": "datasets/text/block-0", "gcp": "datasets/text/block-0", "azure": "data/text/block-0"}
"""Outside of runs. The container of Azure is that of data sets."""


def data_set(cloud: str, replaced: int | None) -> Version:
    """A data set next to the runs, replaced or deleted on a day."""
    return Version(DATA[cloud], replaced)


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    ("settings", "days"),
    [({}, 3), ({"runs_retention_days": 5}, 5), ({"retention_days": 2}, 2), ({"runs_retention_days": 30}, 30)],
)
def test_what_training_replaced_can_be_restored_for_the_days_of_runs(
    cloud: str, settings: dict[str, int], days: int
) -> None:
    storage = declared(cloud, **settings)
    longer = gcp_storage.SOFT_DELETE_DAYS[0] if cloud == "gcp" and days >= 7 else 0
    for what, version in of_training(storage).items():
        assert kept(storage, version) == days + longer, what


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("age", [0, 10, ALREADY_OLD])
@pytest.mark.parametrize("settings", [{}, {"retention_days": 90, "runs_retention_days": 1}])
def test_a_data_set_can_be_restored_for_the_days_of_the_bucket_however_old_it_was(
    cloud: str, age: int, settings: dict[str, int]
) -> None:
    storage, days = declared(cloud, **settings), settings.get("retention_days", 30)
    found = kept(storage, data_set(cloud, age))
    # On Azure no rule can count from the day of the deletion, so that versions of data sets have none.
    assert found == (None if cloud == "azure" else days)


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("versioning", [True, False])
def test_no_rule_ever_deletes_a_current_object(cloud: str, versioning: bool) -> None:
    storage = declared(cloud, versioning=versioning)
    for version in of_training(storage).values():
        assert gone(storage, Version(version.path, replaced=None)) is None
    assert gone(storage, data_set(cloud, None)) is None


@pytest.mark.parametrize(("cloud", "days"), [("aws", 0), ("gcp", 30), ("azure", 30)])
def test_without_versions_the_whole_bucket_has_one_period(cloud: str, days: int) -> None:
    storage = declared(cloud, versioning=False)
    for what, version in {**of_training(storage), "data set": data_set(cloud, 1)}.items():
        # Azure's accounts with folders keep nothing of an overwritten file, only what is deleted.
        if (cloud, what) != ("azure", "lease"):
            assert kept(storage, version) == days, what


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_prefix_of_the_rules_is_that_of_runs_and_no_longer_name(cloud: str) -> None:
    storage = declared(cloud)
    path = "runs2/block-0"
    assert kept(storage, Version(path, 1)) == kept(storage, data_set(cloud, 1))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_bucket_holds_as_much_as_the_documentation_says(root: Path, cloud: str) -> None:
    storage = declared(cloud)
    found = of_training(storage)
    leases = (kept(storage, found["lease"]) or 0) * DAY_S / HEARTBEAT_S
    terabytes = (kept(storage, found["checkpoint"]) or 0) * DAY_S / CHECKPOINT_EVERY_S * CHECKPOINT_GB / 1000
    page = " ".join((root / "docs" / "clouds.md").read_text(encoding="utf-8").split())
    assert f"{leases:,.0f} old leases" in page
    assert f"{terabytes:.1f} TB of old checkpoints" in page
