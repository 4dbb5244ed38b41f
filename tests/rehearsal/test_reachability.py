"""Objects are installed only on a cluster whose API server answers where the program is applied."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainfleet.rehearsal.simulation import reachability
from trainfleet.rehearsal.simulation.cloud_object import CloudObject

EKS_HOST, GKE_HOST, AKS_HOST = "abc.gr7.us-east-2.eks.amazonaws.com", "10.0.0.2", "lab.hcp.eastus.azmk8s.io"
GKE_DNS = "gke-abc.us-central1.gke.goog"
GROUP = "sg-control-plane"


def kubeconfig(host: str) -> str:
    return json.dumps(
        {
            "clusters": [{"name": "c", "cluster": {"server": f"https://{host}:443"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "current-context": "c",
        }
    )


def existing(token: str, inputs: dict[str, Any], outputs: dict[str, Any]) -> CloudObject:
    return CloudObject(f"urn:pulumi:s::p::{token}::it", token, "it", "", inputs, outputs)


def eks(**config: Any) -> CloudObject:
    outputs = {"endpoint": f"https://{EKS_HOST}", "vpcConfig": {"clusterSecurityGroupId": GROUP}}
    return existing(reachability.EKS, {"vpcConfig": config}, outputs)


def gke(*, private: bool, dns: bool = False) -> CloudObject:
    dns_endpoint = {"allowExternalTraffic": dns}
    inputs = {
        "privateClusterConfig": {"enablePrivateEndpoint": private},
        "controlPlaneEndpointsConfig": {"dnsEndpointConfig": dns_endpoint},
    }
    endpoints = {"controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"endpoint": GKE_DNS}}}
    return existing(reachability.GKE, inputs, {"endpoint": GKE_HOST, **endpoints})


def aks(*, private: bool) -> CloudObject:
    inputs = {"apiServerAccessProfile": {"enablePrivateCluster": private}}
    return existing(reachability.AKS, inputs, {"fqdn": AKS_HOST})


def ingress(**rule: Any) -> CloudObject:
    inputs = {"securityGroupId": GROUP, "ipProtocol": "tcp", **rule}
    return existing("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", inputs, {})


PRIVATE_EKS = eks(endpointPublicAccess=False, endpointPrivateAccess=True)
HTTPS = ingress(fromPort=443, toPort=443, cidrIpv4="10.200.0.0/16")


@pytest.mark.parametrize(
    ("host", "place", "records", "reason"),
    [
        (EKS_HOST, "laptop", [PRIVATE_EKS], "is private, and the program is applied from outside"),
        (EKS_HOST, "ci", [PRIVATE_EKS, HTTPS], "is private, and the program is applied from outside"),
        (EKS_HOST, "runner", [PRIVATE_EKS], "no security group of it has an ingress rule for port 443"),
        (
            EKS_HOST,
            "runner",
            [PRIVATE_EKS, ingress(fromPort=80, toPort=80, cidrIpv4="10.0.0.0/8")],
            "no security group of it has an ingress rule for port 443",
        ),
        (
            EKS_HOST,
            "runner",
            [PRIVATE_EKS, ingress(fromPort=443, toPort=443)],
            "no security group of it has an ingress rule for port 443",
        ),
        (GKE_HOST, "laptop", [gke(private=True)], "is private, and the program is applied from outside"),
        (GKE_DNS, "ci", [gke(private=True)], "the DNS endpoint of it does not allow external traffic"),
        (AKS_HOST, "laptop", [aks(private=True)], "is private, and the program is applied from outside"),
    ],
)
def test_a_cluster_that_is_not_reachable_is_named_with_the_reason(
    host: str, place: str, records: list[CloudObject], reason: str
) -> None:
    found = reachability.why_unreachable(kubeconfig(host), place, records)
    assert found is not None
    assert found.what.startswith("dial tcp: i/o timeout: ")
    assert reason in found.what
    assert "documentation" in found.source or "user guide" in found.source


@pytest.mark.parametrize(
    ("host", "place", "records"),
    [
        (EKS_HOST, "laptop", [eks(endpointPublicAccess=True, publicAccessCidrs=["203.0.113.0/24"])]),
        (EKS_HOST, "laptop", [eks()]),
        (EKS_HOST, "runner", [PRIVATE_EKS, HTTPS]),
        (EKS_HOST, "runner", [PRIVATE_EKS, ingress(ipProtocol="-1", cidrIpv4="10.0.0.0/8")]),
        (EKS_HOST, "runner", [eks(endpointPublicAccess=True)]),
        (GKE_HOST, "laptop", [gke(private=False)]),
        (GKE_HOST, "runner", [gke(private=True)]),
        (GKE_DNS, "ci", [gke(private=True, dns=True)]),
        (GKE_DNS, "runner", [gke(private=True)]),
        (AKS_HOST, "ci", [aks(private=False)]),
        (AKS_HOST, "runner", [aks(private=True)]),
        ("another.example", "laptop", [PRIVATE_EKS, gke(private=True), aks(private=True)]),
    ],
)
def test_a_reachable_cluster_and_one_of_another_program_pass(
    host: str, place: str, records: list[CloudObject]
) -> None:
    assert not reachability.why_unreachable(kubeconfig(host), place, records)


@pytest.mark.parametrize("text", ["", "no: contexts", "{", "[]"])
def test_a_kubeconfig_that_cannot_be_read_is_left_to_its_own_check(text: str) -> None:
    assert not reachability.why_unreachable(text, "laptop", [PRIVATE_EKS])
