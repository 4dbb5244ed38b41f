"""The replacement table against the installed SDKs: every type, every path, a source for each, and facts that
must not get lost.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainfleet.rehearsal.simulation.knowledge_table import tables
from trainfleet.rehearsal.simulation.replacement import TABLE, Effect, effects, join_path, split_path, table
from trainfleet.rehearsal.simulation.schema import Kind, Property, inputs_of, packages

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # the SDK warns of its own old types when they are read
ENTRIES: dict[str, dict[str, Any]] = {
    token: entry
    for file in sorted(TABLE.glob("*.toml"))
    for token, entry in tomllib.loads(file.read_text()).items()
}
TOKENS = sorted(token for token in ENTRIES if not token.startswith("pulumi:"))
KEYS = {"source", "replace", "delete_first", "when", "unclear", "settled"}


def inputs(token: str) -> dict[str, Property]:
    resource = packages()[token.split(":", maxsplit=1)[0]].resource(token)
    assert resource is not None, f"{token} is not a type of the installed SDK"
    return resource.inputs


def objects(kind: Kind) -> list[Kind]:
    """The object kinds that a property may hold."""
    return [choice for choice in (kind, *kind.choices) if choice.name == "object"]


def missing_step(properties: dict[str, Property], path: tuple[str, ...]) -> str:
    """The first step of a path that the SDK does not know, or nothing."""
    kind: Kind | None = None
    for step in path:
        if step == "[*]":
            assert kind is not None
            if kind.name != "list" or kind.item is None:
                return step
            kind = kind.item
            continue
        if kind is not None:
            nested = [choice.cls for choice in objects(kind) if choice.cls is not None]
            if not nested:
                return step
            properties = inputs_of(nested[0])
        if step not in properties:
            return step
        kind = properties[step].kind
    return ""


@pytest.mark.deep
@pytest.mark.parametrize("token", TOKENS)
def test_every_type_and_path_is_in_the_installed_sdk(token: str) -> None:
    entry = ENTRIES[token]
    known = inputs(token)
    paths = [
        *entry.get("replace", ()),
        *entry.get("delete_first", ()),
        *entry.get("when", {}),
        *entry.get("unclear", {}),
    ]
    unknown = {path: step for path in paths if (step := missing_step(known, split_path(path)))}
    assert not unknown, f"{token}: the SDK has no such input: {unknown}"


@pytest.mark.parametrize("token", sorted(ENTRIES))
def test_every_row_has_a_source_and_says_each_thing_once(token: str) -> None:
    entry = ENTRIES[token]
    assert re.match(r"[\w-]+/[\w-]+ \S+\.(go|json|markdown) ", entry["source"]), (
        "a source is: repository, file of the provider or of its documentation, version"
    )
    assert set(entry) <= KEYS
    replace = entry.get("replace", [])
    paths = [split_path(path) for path in replace]
    assert all(join_path(split_path(path)) == path for path in replace)
    covered = [
        (one, other) for one in paths for other in paths if one is not other and one[: len(other)] == other
    ]
    assert not covered, "a path covers what is below it"
    assert not {*entry.get("when", {}), *entry.get("unclear", {})} & set(replace)
    assert {split_path(path) for path in entry.get("delete_first", ())} <= set(table()[token].replace)


def test_a_row_by_hand_says_what_the_generated_row_does_not() -> None:
    """Whatever a source says is read from it: a row by hand that repeats it would hide its next version."""
    repeated = [
        f"{token} {path}"
        for token, entry in ENTRIES.items()
        for path in entry.get("replace", ())
        if (known := tables().get(token.split(":")[0]))
        and (row := known.types.get(token))
        and path in row.replace
    ]
    assert not repeated


@pytest.mark.parametrize("package", ["aws", "azure-native", "gcp", "kubernetes"])
def test_a_table_has_nearly_every_type_of_the_installed_sdk_and_each_row_reads(package: str) -> None:
    known, rules = tables()[package], table()
    assert len(known.types) / len(packages()[package].classes) > 0.95
    for token in known.types:
        rule = rules[token]
        assert rule.source.startswith(known.source)
        assert not {each.path for each in rule.conditions} & set(rule.replace), token


FORCED = {
    "aws:eks/cluster:Cluster": [
        "name",
        "roleArn",
        "bootstrapSelfManagedAddons",
        "accessConfig.bootstrapClusterCreatorAdminPermissions",
    ],
    "aws:eks/nodeGroup:NodeGroup": [
        "subnetIds",
        "instanceTypes[0]",
        "capacityType",
        "amiType",
        "launchTemplate.id",
    ],
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": ["namespace", "serviceAccount"],
    "aws:ec2/vpc:Vpc": ["cidrBlock"],
    "aws:ec2/flowLog:FlowLog": ["destinationOptions.fileFormat"],
    "aws:s3/bucket:Bucket": ["bucket", "objectLockEnabled"],
    "aws:fsx/lustreFileSystem:LustreFileSystem": ["subnetIds", "storageType", "deploymentType", "efaEnabled"],
    "aws:rds/instance:Instance": ["username", "kmsKeyId"],
    "aws:dynamodb/table:Table": ["name", "hashKey"],
    "aws:secretsmanager/secret:Secret": ["type"],
    "kubernetes:apps/v1:Deployment": ["spec.selector.matchLabels.app"],
    "kubernetes:storage.k8s.io/v1:StorageClass": ["parameters.type", "provisioner"],
    "kubernetes:rbac.authorization.k8s.io/v1:RoleBinding": ["roleRef.name", "metadata.namespace"],
    "kubernetes:core/v1:PersistentVolume": ["spec.csi.volumeHandle"],
    "pulumi:providers:kubernetes": ["clusterIdentifier"],
}
IN_PLACE = {
    "aws:eks/cluster:Cluster": [
        "version",
        "vpcConfig.subnetIds[0]",
        "vpcConfig.publicAccessCidrs[0]",
        "tags.Name",
        "remoteNetworkConfig",
    ],
    "aws:eks/nodeGroup:NodeGroup": [
        "scalingConfig.maxSize",
        "launchTemplate.version",
        "labels.pool",
        "taints[0].value",
        "version",
    ],
    "aws:eks/addon:Addon": ["addonVersion", "configurationValues"],
    "aws:ec2/launchTemplate:LaunchTemplate": ["userData", "networkInterfaces[0].interfaceType"],
    "aws:ec2/vpcEndpoint:VpcEndpoint": ["subnetIds[0]", "policy"],
    "aws:iam/role:Role": ["assumeRolePolicy", "description"],
    "aws:kms/key:Key": ["policy", "description"],
    "kubernetes:apps/v1:Deployment": ["spec.replicas", "spec.template.spec.containers[0].image"],
    "kubernetes:helm.sh/v3:Release": ["version", "values.image.tag", "chart"],
    "pulumi:providers:kubernetes": ["kubeconfig"],
}


@pytest.mark.parametrize(
    ("token", "path"), [(token, path) for token, paths in FORCED.items() for path in paths]
)
def test_known_to_replace(token: str, path: str) -> None:
    assert table()[token].forces(split_path(path))


@pytest.mark.parametrize(
    ("token", "path"), [(token, path) for token, paths in IN_PLACE.items() for path in paths]
)
def test_known_to_change_in_place(token: str, path: str) -> None:
    assert not table()[token].forces(split_path(path))


@pytest.mark.parametrize(
    ("token", "name", "effect"),
    [
        ("aws:lambda/function:Function", "code", Effect.UPDATE),
        ("aws:lambda/function:Function", "name", Effect.REPLACE),
        ("aws:lambda/layerVersion:LayerVersion", "code", Effect.REPLACE),
        ("aws:lambda/permission:Permission", "function", Effect.REPLACE),
        ("aws:cloudwatch/metricAlarm:MetricAlarm", "name", Effect.REPLACE),
        ("aws:cloudwatch/logSubscriptionFilter:LogSubscriptionFilter", "logGroup", Effect.REPLACE),
        ("aws:glue/catalogTable:CatalogTable", "partitionIndices", Effect.REPLACE),
        ("aws:eks/cluster:Cluster", "defaultAddonsToRemoves", Effect.UPDATE),
        ("aws:elasticbeanstalk/environment:Environment", "version", Effect.UPDATE),
    ],
)
def test_a_property_with_another_name_than_in_the_source_is_known(
    token: str, name: str, effect: Effect
) -> None:
    assert list(effects(token, {name: "a"}, {name: "b"}).values()) == [effect]


def test_a_policy_attachment_goes_before_its_successor_comes() -> None:
    """The new attachment is the same thing to IAM; deleting the old one last would take the new one away."""
    assert table()["aws:iam/rolePolicyAttachment:RolePolicyAttachment"].forces_delete_first(("policyArn",))


def used_types(folder: Path) -> Iterator[str]:
    """The type tokens whose classes a folder's code calls, by the names under which the SDKs are imported."""
    tokens = {
        (fqn, name): token
        for package in packages().values()
        for token, (fqn, name) in package.classes.items()
    }
    for file in folder.rglob("*.py"):
        tree = ast.parse(file.read_text())
        names = {
            alias.asname or alias.name: alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                first, _, rest = ast.unparse(node.func).partition(".")
                module, _, name = f"{names.get(first, '')}.{rest}".rpartition(".")
                if (module, name) in tokens:
                    yield tokens[module, name]


@pytest.mark.parametrize("folder", ["aws", "gcp", "kubernetes"])
def test_the_table_has_every_type_that_the_platform_is_made_of(root: Path, folder: str) -> None:
    used = set(used_types(root / "infra" / folder))
    assert len(used) > 10, "the platform's code is not read as it is written now"
    assert not used - set(table()), "make knowledge, from a source that has these types"
