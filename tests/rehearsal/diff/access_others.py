"""What changes of resources on Google Cloud, Azure and Kubernetes mean for access."""

from __future__ import annotations

import json

from tests.rehearsal.diff.access_aws import Case
from tests.rehearsal.diff.access_resources import (
    CONTRIBUTOR,
    IDENTITY,
    RBAC,
    assignment,
    binding,
    firewall,
    made,
    nsg,
    role,
    rule,
)
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN

OTHERS: dict[str, Case] = {
    "gcp member": (
        [],
        [
            made(
                "gcp:storage/bucketIAMMember:BucketIAMMember",
                bucket="runs-1",
                role="roles/storage.objectAdmin",
                member="serviceAccount:a@p.iam.gserviceaccount.com",
            )
        ],
        ["service account a@p.iam.gserviceaccount.com now has roles/storage.objectAdmin on bucket runs-1"],
    ),
    "gcp binding": (
        [
            made(
                "gcp:projects/iAMBinding:IAMBinding",
                project="p",
                role="roles/viewer",
                members=["user:a@b.c", "user:d@e.f"],
            )
        ],
        [
            made(
                "gcp:projects/iAMBinding:IAMBinding",
                project="p",
                role="roles/viewer",
                members=["user:a@b.c", "allUsers"],
            )
        ],
        ["anyone now has roles/viewer on project p", "user d@e.f no longer has roles/viewer on project p"],
    ),
    "gcp policy": (
        [],
        [
            made(
                "gcp:projects/iAMPolicy:IAMPolicy",
                project="p",
                policyData=json.dumps({"bindings": [{"role": "roles/owner", "members": ["user:a@b.c"]}]}),
            )
        ],
        ["user a@b.c now has roles/owner on project p"],
    ),
    "gcp unknown policy": (
        [],
        [made("gcp:projects/iAMPolicy:IAMPolicy", project="p", policyData=UNKNOWN)],
        ["what somebody can do on project p is not known before the apply ([known after apply])"],
    ),
    "gcp firewall": (
        [firewall(allows=[{"protocol": "tcp", "ports": ["443"]}], sourceRanges=["10.0.0.0/8"])],
        [firewall(allows=[{"protocol": "tcp", "ports": ["443", "8000-9000"]}], sourceRanges=["0.0.0.0/0"])],
        ["ports 443, 8000-9000 of network net are now reachable from 0.0.0.0/0"],
    ),
    "gcp disabled firewall": (
        [firewall(allows=[{"protocol": "tcp"}])],
        [firewall(allows=[{"protocol": "tcp"}], disabled=True)],
        ["every tcp port of network net is no longer reachable from 0.0.0.0/0"],
    ),
    "gcp deny": (
        [firewall(denies=[{"protocol": "all"}], sourceRanges=["198.51.100.0/24"])],
        [],
        ["network net no longer blocks all from 198.51.100.0/24"],
    ),
    "gcp control plane": (
        [
            made(
                "gcp:container/cluster:Cluster",
                "k",
                masterAuthorizedNetworksConfig={"cidrBlocks": [{"cidrBlock": "203.0.113.0/24"}]},
            )
        ],
        [made("gcp:container/cluster:Cluster", "k")],
        ["port 443 of the API server of cluster k is now reachable from 0.0.0.0/0"],
    ),
    "azure role": (
        [IDENTITY],
        [IDENTITY, assignment(CONTRIBUTOR)],
        ["user assigned identity trainer now has Contributor on scope /subscriptions/1/resourceGroups/rg"],
    ),
    "azure unknown scope": (
        [IDENTITY],
        [IDENTITY, assignment("00000000-0000-0000-0000-000000000000", UNKNOWN)],
        [
            "user assigned identity trainer now has /subscriptions/1/providers/Microsoft.Authorization/roleDefinitions/"
            "00000000-0000-0000-0000-000000000000 on scope [known after apply]"
        ],
    ),
    "azure rule": (
        [nsg(sourceAddressPrefix="10.0.0.0/8")],
        [nsg()],
        ["port 443 of network security group nodes is now reachable from 0.0.0.0/0"],
    ),
    "azure tag": (
        [nsg(sourceAddressPrefix="VirtualNetwork")],
        [nsg(sourceAddressPrefix="AzureLoadBalancer", destinationPortRange="*")],
        [
            "every tcp port of network security group nodes is now reachable from AzureLoadBalancer",
            "port 443 of network security group nodes is no longer reachable from VirtualNetwork",
        ],
    ),
    "azure deny": (
        [nsg(access="Deny")],
        [nsg(access="Deny", sourceAddressPrefix="10.0.0.0/8")],
        [
            "network security group nodes now blocks tcp 443 from 10.0.0.0/8",
            "network security group nodes no longer blocks tcp 443 from 0.0.0.0/0",
        ],
    ),
    "azure store": (
        [
            made(
                "azure-native:storage:StorageAccount",
                "runs",
                networkRuleSet={"defaultAction": "Deny", "ipRules": [{"iPAddressOrRange": "203.0.113.7"}]},
            )
        ],
        [
            made(
                "azure-native:storage:StorageAccount",
                "runs",
                networkRuleSet={"defaultAction": "Allow"},
                allowBlobPublicAccess=True,
            )
        ],
        [
            "anyone now has anonymous access, if a container allows it on storage account runs",
            "port 443 of storage account runs is now reachable from 0.0.0.0/0",
        ],
    ),
    "kubernetes verbs": (
        [role(rule("get")), binding()],
        [role(rule("get", "create")), binding()],
        ["service account ml/runner can now write to pods in namespace ml (create)"],
    ),
    "kubernetes wildcard": (
        [role(rule("get")), binding()],
        [role(rule("*", on="*", group="*")), binding()],
        [
            "service account ml/runner can now do anything with every resource of every API group in namespace ml (*)",
            "service account ml/runner can no longer read pods in namespace ml (get)",
        ],
    ),
    "kubernetes unbound": ([], [role(rule("*", on="secrets"))], []),
    "kubernetes removed": (
        [role(rule("get", on="deployments", group="apps", resourceNames=["web"])), binding()],
        [role(rule("get", on="deployments", group="apps", resourceNames=["web"]))],
        ["service account ml/runner can no longer read deployments.apps web in namespace ml (get)"],
    ),
    "kubernetes role elsewhere": (
        [],
        [
            binding(
                "ClusterRole",
                "cluster-admin",
                "ClusterRoleBinding",
                kind="Group",
                name="system:authenticated",
            )
        ],
        ["group system:authenticated now has ClusterRole cluster-admin in every namespace"],
    ),
    "kubernetes unknown rules": (
        [],
        [
            made(f"{RBAC}Role", "reader", metadata={"name": "reader", "namespace": "ml"}, rules=UNKNOWN),
            binding(),
        ],
        [
            "what service account ml/runner can do in namespace ml is not known before the apply (a rule of role reader: [known after apply])"
        ],
    ),
}
