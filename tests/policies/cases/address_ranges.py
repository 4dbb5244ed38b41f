"""Address ranges that are the internet in other words, and ranges that are not."""

from __future__ import annotations

from typing import Any

from tests.policies.cases.table import Case
from trainfleet.policies.resource_types import AKS, EKS, GCP_FIREWALL, GKE, NSG_RULE, SERVICE

INGRESS_RULE = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
HALVES = ["0.0.0.0/1", "128.0.0.0/1"]
EIGHTS = [f"{first}.0.0.0/8" for first in range(1, 9)]
"""Eight public /8 blocks: none is too wide by itself."""
CASES = [
    *(
        Case(
            "no-open-control-plane",
            EKS,
            {"vpcConfig.endpointPublicAccess": True, "vpcConfig.publicAccessCidrs": ranges},
            says,
        )
        for ranges, says in (
            (HALVES, "includes 0.0.0.0/1, 128.0.0.0/1"),
            (["64.0.0.0/2"], "includes 64.0.0.0/2"),
            (["203.0.113.7/0"], "includes 0.0.0.0/0"),
            (EIGHTS, "includes 1.0.0.0/8, 2.0.0.0/8, 3.0.0.0/8, 4.0.0.0/8 and 4 more"),
        )
    ),
    Case(
        "no-open-control-plane",
        GKE,
        {
            "controlPlaneEndpointsConfig": {},
            "privateClusterConfig.enablePrivateEndpoint": False,
            "masterAuthorizedNetworksConfig": {"cidrBlocks": [{"cidrBlock": each} for each in HALVES]},
        },
        "includes 0.0.0.0/1, 128.0.0.0/1",
    ),
    Case(
        "no-open-control-plane",
        AKS,
        {"apiServerAccessProfile": {"enablePrivateCluster": False, "authorizedIPRanges": HALVES}},
        "includes 0.0.0.0/1",
    ),
    Case("no-open-ingress", INGRESS_RULE, {"cidrIpv4": "0.0.0.0/1"}, "0.0.0.0/1"),
    Case("no-open-ingress", INGRESS_RULE, {"cidrIpv6": "0000:0000::/0"}, "::/0"),
    Case("no-open-ingress", INGRESS_RULE, {"cidrIpv6": "2000::/3"}, "2000::/3"),
    Case("no-open-ingress", GCP_FIREWALL, {"sourceRanges": ["::0/0"]}, "::/0"),
    Case("no-open-ingress", NSG_RULE, {"sourceAddressPrefix": "INTERNET"}, "INTERNET"),
    Case("no-open-ingress", NSG_RULE, {"sourceAddressPrefix": "0.0.0.0/1"}, "0.0.0.0/1"),
    Case(
        "no-public-service",
        SERVICE,
        {"spec.type": "LoadBalancer", "spec.loadBalancerSourceRanges": HALVES},
        "LoadBalancer",
    ),
]
COMPLIANT: list[tuple[str, str, dict[str, Any]]] = [
    *(
        (
            "no-open-control-plane",
            EKS,
            {"vpcConfig": {"endpointPublicAccess": True, "publicAccessCidrs": ranges}},
        )
        for ranges in (
            ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"],
            ["17.0.0.0/8"],
            ["203.0.113.0/24", "198.51.100.0/24"],
        )
    ),
    ("no-open-ingress", INGRESS_RULE, {"cidrIpv6": "fd00::/8"}),
    ("no-open-ingress", INGRESS_RULE, {"cidrIpv6": "2001:db8::/32"}),
    (
        "no-open-ingress",
        NSG_RULE,
        {"access": "Allow", "direction": "Inbound", "sourceAddressPrefix": "AzureLoadBalancer"},
    ),
]
