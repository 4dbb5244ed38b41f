"""The simulated Google Cloud and Azure: ids, names, outputs, functions and settings, as the real ones have
them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session, rehearse
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.schema import packages

GCP = {"project": "my-project", "region": "europe-west4"}
AZURE = {"subscriptionId": "22222222-1111-2222-3333-444444444444", "location": "westeurope"}
GROUP = f"/subscriptions/{AZURE['subscriptionId']}/resourceGroups/rg/providers"


def made(
    token: str, inputs: dict[str, Any], logical: str = "thing", *, preview: bool = False
) -> tuple[str, dict[str, Any]]:
    """What the simulated provider makes of inputs: the id and the outputs."""
    package = packages()[token.split(":", maxsplit=1)[0]]
    settings, model, resource = (
        GCP if package.name == "gcp" else AZURE,
        CLOUD_MODELS[package.name],
        package.resource(token),
    )
    assert resource is not None, token
    inputs = model.with_name(
        resource, token, model.completed(resource, inputs, settings), {}, logical, "abcdef0123456789" * 4
    )
    place, region = model.defaults(settings), model.region_of(inputs, settings)
    resource_id = model.make_id(
        token, {**place, **inputs}, model.physical_name(token, inputs) or logical, "f00d" * 8
    )
    return resource_id, model.outputs(
        resource, token, inputs, logical, resource_id, region, preview=preview, place=place
    )


IDS = [
    ("gcp:compute/network:Network", {}, "projects/my-project/global/networks/thing-abcdef0"),
    (
        "gcp:compute/subnetwork:Subnetwork",
        {"name": "nodes"},
        "projects/my-project/regions/europe-west4/subnetworks/nodes",
    ),
    ("gcp:container/cluster:Cluster", {"name": "c"}, "projects/my-project/locations/europe-west4/clusters/c"),
    (
        "gcp:container/nodePool:NodePool",
        {"name": "h100", "cluster": "projects/my-project/locations/europe-west4/clusters/c"},
        "projects/my-project/locations/europe-west4/clusters/c/nodePools/h100",
    ),
    (
        "gcp:serviceaccount/account:Account",
        {"accountId": "nodes-sa"},
        "projects/my-project/serviceAccounts/nodes-sa@my-project.iam.gserviceaccount.com",
    ),
    ("gcp:storage/bucket:Bucket", {"location": "EU"}, "thing-abcdef0"),
    (
        "gcp:kms/cryptoKey:CryptoKey",
        {"name": "disks", "keyRing": "projects/my-project/locations/global/keyRings/ring"},
        "projects/my-project/locations/global/keyRings/ring/cryptoKeys/disks",
    ),
    (
        "gcp:storage/bucketIAMMember:BucketIAMMember",
        {"bucket": "runs", "role": "roles/storage.objectUser", "member": "serviceAccount:a@b"},
        "runs/roles/storage.objectUser/serviceAccount:a@b",
    ),
    (
        "gcp:workstations/workstationCluster:WorkstationCluster",
        {"name": "w"},
        "projects/my-project/locations/europe-west4/workstationClusters/w",
    ),
    ("azure-native:resources:ResourceGroup", {}, f"{GROUP.removesuffix('/rg/providers')}/thingabcdef01"),
    (
        "azure-native:network:VirtualNetwork",
        {"resourceGroupName": "rg"},
        f"{GROUP}/Microsoft.Network/virtualNetworks/thingabcdef01",
    ),
    (
        "azure-native:network:Subnet",
        {"resourceGroupName": "rg", "virtualNetworkName": "v"},
        f"{GROUP}/Microsoft.Network/virtualNetworks/v/subnets/thing",
    ),
    (
        "azure-native:containerservice:AgentPool",
        {"resourceGroupName": "rg", "resourceName": "c", "agentPoolName": "h100"},
        f"{GROUP}/Microsoft.ContainerService/managedClusters/c/agentPools/h100",
    ),
    (
        "azure-native:storage:StorageAccount",
        {"resourceGroupName": "rg"},
        f"{GROUP}/Microsoft.Storage/storageAccounts/thingabcdef01",
    ),
    (
        "azure-native:authorization:RoleAssignment",
        {
            "scope": "/subscriptions/s",
            "roleAssignmentName": "9f5c",
            "principalId": "p",
            "roleDefinitionId": "r",
        },
        "/subscriptions/s/providers/Microsoft.Authorization/roleAssignments/9f5c",
    ),
    (
        "azure-native:web:AppServicePlan",
        {"resourceGroupName": "rg", "name": "plan"},
        f"{GROUP}/Microsoft.Web/appServicePlans/plan",
    ),
]


@pytest.mark.parametrize(("token", "inputs", "expected"), IDS, ids=[token for token, _, _ in IDS])
def test_ids_are_paths(token: str, inputs: dict[str, Any], expected: str) -> None:
    assert made(token, inputs)[0] == expected


OUTPUTS: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "gcp:serviceaccount/account:Account",
        {"accountId": "nodes-sa"},
        "member",
        "serviceAccount:nodes-sa@my-project.iam.gserviceaccount.com",
    ),
    ("gcp:storage/bucket:Bucket", {"location": "EU", "name": "runs"}, "url", "gs://runs"),
    (
        "gcp:compute/network:Network",
        {"name": "net"},
        "selfLink",
        "https://www.googleapis.com/compute/v1/projects/my-project/global/networks/net",
    ),
    ("gcp:compute/subnetwork:Subnetwork", {}, "region", "europe-west4"),
    ("gcp:secretmanager/secret:Secret", {"secretId": "hf"}, "name", "projects/my-project/secrets/hf"),
    (
        "azure-native:storage:StorageAccount",
        {"accountName": "runs"},
        "primaryEndpoints.dfs",
        "https://runs.dfs.core.windows.net/",
    ),
    (
        "azure-native:keyvault:Vault",
        {"vaultName": "v", "properties": {}},
        "properties.vaultUri",
        "https://v.vault.azure.net/",
    ),
    (
        "azure-native:containerregistry:Registry",
        {"registryName": "Images"},
        "loginServer",
        "images.azurecr.io",
    ),
    ("azure-native:network:VirtualNetwork", {}, "location", "westeurope"),
    (
        "azure-native:containerservice:AgentPool",
        {"resourceName": "c"},
        "type",
        "Microsoft.ContainerService/managedClusters/agentPools",
    ),
]


@pytest.mark.parametrize(
    ("token", "inputs", "path", "expected"), OUTPUTS, ids=[f"{token} {path}" for token, _, path, _ in OUTPUTS]
)
def test_outputs_have_the_form_that_programs_rely_on(
    token: str, inputs: dict[str, Any], path: str, expected: str
) -> None:
    value: Any = made(token, {"resourceGroupName": "rg", **inputs} if token.startswith("azure") else inputs)[
        1
    ]
    for step in path.split("."):
        value = value[step]
    assert value == expected


def test_an_azure_cluster_has_an_issuer_identities_and_addresses() -> None:
    asked = {
        "resourceGroupName": "rg",
        "identity": {"type": "SystemAssigned"},
        "oidcIssuerProfile": {"enabled": True},
        "dnsPrefix": "dev",
    }
    cluster = made(
        "azure-native:containerservice:ManagedCluster",
        {**asked, "addonProfiles": {"omsagent": {"enabled": True}}},
    )[1]
    assert cluster["oidcIssuerProfile"]["enabled"] is True
    assert cluster["oidcIssuerProfile"]["issuerURL"].startswith("https://westeurope.oic.prod-aks.azure.com/")
    assert cluster["fqdn"].endswith(".hcp.westeurope.azmk8s.io")
    assert (
        len(cluster["identity"]["principalId"])
        == len(cluster["addonProfiles"]["omsagent"]["identity"]["clientId"])
        == 36
    )
    assert cluster["nodeResourceGroup"] == "MC_rg_thingabcdef01_westeurope"


def test_a_google_cluster_has_a_certificate_and_a_dns_endpoint() -> None:
    asked = {"controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"allowExternalTraffic": True}}}
    cluster = made("gcp:container/cluster:Cluster", asked)[1]
    assert b"BEGIN CERTIFICATE" in base64.b64decode(cluster["masterAuth"]["clusterCaCertificate"])
    assert cluster["controlPlaneEndpointsConfig"]["dnsEndpointConfig"]["endpoint"].endswith(
        ".europe-west4.gke.goog"
    )
    assert cluster["controlPlaneEndpointsConfig"]["dnsEndpointConfig"]["allowExternalTraffic"] is True
    assert "guestAccelerators" not in json.dumps(cluster), "a setting that was left out should stay out"


@pytest.mark.parametrize(
    ("token", "one", "other", "same"),
    [
        (
            "gcp:storage/bucket:Bucket",
            {"name": "runs", "location": "EU"},
            {"name": "runs", "location": "US"},
            True,
        ),
        (
            "gcp:compute/subnetwork:Subnetwork",
            {"name": "n", "region": "us-east1"},
            {"name": "n", "region": "us-east4"},
            False,
        ),
        (
            "gcp:projects/iAMMember:IAMMember",
            {"project": "p", "role": "r", "member": "m"},
            {"project": "p", "role": "r", "member": "m"},
            False,
        ),
        (
            "azure-native:storage:StorageAccount",
            {"accountName": "runs", "resourceGroupName": "a"},
            {"accountName": "runs", "resourceGroupName": "b"},
            True,
        ),
        (
            "azure-native:keyvault:Vault",
            {"vaultName": "Keys", "resourceGroupName": "a"},
            {"vaultName": "keys", "resourceGroupName": "b"},
            True,
        ),
        (
            "azure-native:network:NatGateway",
            {"natGatewayName": "n", "resourceGroupName": "a"},
            {"natGatewayName": "n", "resourceGroupName": "b"},
            False,
        ),
    ],
)
def test_which_names_may_exist_twice(
    token: str, one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    model = CLOUD_MODELS[token.split(":", maxsplit=1)[0]]
    first, second = (model.unique_key(token, inputs, model.region_of(inputs, {})) for inputs in (one, other))
    assert bool(first and first == second) is same


def test_everything_computed_is_unknown_in_a_preview() -> None:
    account = made("gcp:serviceaccount/account:Account", {"accountId": "nodes-sa"}, preview=True)[1]
    assert account["email"] == account["uniqueId"] != ""
    assert account["accountId"] == "nodes-sa"


GOOGLE = """
net = gcp.compute.Network("net", auto_create_subnetworks=False)
nodes = gcp.compute.Subnetwork("nodes", network=net.id, ip_cidr_range="10.0.0.0/20")
account = gcp.serviceaccount.Account("nodes", account_id="nodes-account")
bucket = gcp.storage.Bucket("runs", location="EU", labels={"team": "ml"})
gcp.storage.BucketIAMMember("write", bucket=bucket.name, role="roles/storage.objectUser", member=account.member)
cluster = gcp.container.Cluster("c", network=net.id, subnetwork=nodes.id, initial_node_count=1, remove_default_node_pool=True, resource_labels={"a": "b"})
gcp.container.NodePool("pool", cluster=cluster.id, node_config={"machine_type": "e2-standard-4", "service_account": account.email})
pulumi.export("asked", gcp.organizations.get_client_config().project)
pulumi.export("cluster", cluster.id)
"""
MICROSOFT = """
group = az.resources.ResourceGroup("rg", tags={"team": "ml"})
net = az.network.VirtualNetwork("net", resource_group_name=group.name, address_space={"address_prefixes": ["10.0.0.0/16"]})
nodes = az.network.Subnet("nodes", resource_group_name=group.name, virtual_network_name=net.name, address_prefix="10.0.0.0/20")
who = az.managedidentity.UserAssignedIdentity("who", resource_group_name=group.name)
cluster = az.containerservice.ManagedCluster(
    "c", resource_group_name=group.name, dns_prefix="c", identity={"type": "SystemAssigned"}, oidc_issuer_profile={"enabled": True},
    agent_pool_profiles=[{"name": "sys", "count": 1, "mode": "System", "vm_size": "Standard_D4s_v5", "vnet_subnet_id": nodes.id}])
az.managedidentity.FederatedIdentityCredential(
    "trust", resource_group_name=group.name, resource_name_=who.name, issuer=cluster.oidc_issuer_profile.issuer_url,
    subject="system:serviceaccount:training:trainer", audiences=["api://AzureADTokenExchange"])
kube = az.containerservice.list_managed_cluster_user_credentials_output(resource_group_name=group.name, resource_name=cluster.name)
pulumi.export("asked", az.authorization.get_client_config().subscription_id)
pulumi.export("kubeconfig", kube.kubeconfigs[0].value)
pulumi.export("cluster", cluster.id)
"""
PROGRAMS = {
    "gcp": ("gcp", GOOGLE, {f"gcp:{name}": value for name, value in GCP.items()}, GCP["project"]),
    "azure": (
        "azure_native as az",
        MICROSOFT,
        {f"azure-native:{name}": value for name, value in AZURE.items()},
        AZURE["subscriptionId"],
    ),
}


@pytest.fixture(params=sorted(PROGRAMS))
def other_cloud(
    request: pytest.FixtureRequest, program: Callable[[str], Path]
) -> tuple[Path, dict[str, Any], str]:
    """A small program of each cloud, its settings, and the account it should find itself in."""
    module, code, config, account = PROGRAMS[request.param]
    return (
        program(f"import pulumi_{module if ' as ' in module else f'{module} as {module}'}\n{code}"),
        {"config": config},
        account,
    )


@pytest.mark.sampled(1)
def test_a_program_of_another_cloud_goes_through_and_sees_its_settings(
    engine: Engine, other_cloud: tuple[Path, dict[str, Any], str], tmp_path: Path
) -> None:
    folder, settings, account = other_cloud
    report = rehearse(
        read_project(folder), engine, RehearsalOptions(outputs=tmp_path / "outputs.json"), settings=settings
    )
    assert report.ok, report.problems
    outputs = json.loads((tmp_path / "outputs.json").read_text())
    assert outputs["asked"] == account
    assert account in outputs["cluster"]


def test_programs_that_share_a_warm_process_find_every_class_of_a_lazy_sdk(
    engine: Engine, program: Callable[[str], Path]
) -> None:
    folder = program(f"import pulumi_azure_native as az\n{MICROSOFT}")
    with rehearsal_session(
        read_project(folder), engine, RehearsalOptions(), settings={"config": PROGRAMS["azure"][2]}
    ) as rehearsal:
        outcomes = [rehearsal.runner.run("preview") for _ in range(2)]
    assert [outcome.ok for outcome in outcomes] == [True, True], outcomes[-1].output
