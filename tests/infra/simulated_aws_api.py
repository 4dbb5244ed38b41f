"""A simulated AWS API for preflight: the query, JSON and REST protocols of the operations that it sends."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from tests.infra.simulated_api import Reply, Request

KEY = "AKIASIMULATEDACCOUNT"
JSON, XML = "application/x-amz-json-1.1", "text/xml"
LATER = 4102444800
"""2100-01-01, in seconds."""
QUOTAS = {
    "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances": 1000.0,
    "Running On-Demand P instances": 1000.0,
    "Running On-Demand G and VT instances": 1000.0,
    "All G and VT Spot Instance Requests": 1000.0,
    "All P5 Spot Instance Requests": 1000.0,
}


@dataclass
class SimulatedAws:
    """One account; the defaults are right for stacks/Pulumi.aws-prod.yaml."""

    arn: str
    offered: dict[str, list[str]]
    """Zones by machine."""
    number: str = "111122223333"
    quotas: dict[str, float] = field(default_factory=lambda: dict(QUOTAS))
    reservations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By id."""
    cluster: dict[str, Any] | None = None
    log_groups: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    secrets: list[dict[str, Any]] = field(default_factory=list)
    cost_tags: dict[str, str] = field(default_factory=lambda: {"trainfleet:platform": "Active"})
    """Status of the cost allocation tags by key."""
    versions: dict[str, str] = field(default_factory=lambda: {"1.35": "STANDARD_SUPPORT"})
    zones: dict[str, str] = field(
        default_factory=lambda: {f"us-east-2{letter}": f"use2-az{n}" for n, letter in enumerate("abc", 1)}
    )
    """Id by name."""
    key: str = KEY
    """The access key that is accepted; assuming a role replaces it."""
    denied: tuple[str, ...] = ()
    """Operations that the caller may not use."""

    def __call__(self, asked: Request) -> Reply:
        """Answer one request, by the protocol of its service."""
        if self.key not in asked.headers.get("authorization", ""):
            return self._error(asked, "InvalidClientTokenId", 403)
        operation = self.operation(asked)
        if operation in self.denied:
            code = "UnauthorizedOperation" if _is_query(asked) else "AccessDeniedException"
            return self._error(asked, code, 403)
        handler: Any = getattr(self, operation, None)
        return handler(asked) if handler else self._error(asked, "UnknownOperation", 400)

    @staticmethod
    def operation(asked: Request) -> str:
        """The operation of a request."""
        if target := asked.headers.get("x-amz-target"):
            return target.rpartition(".")[2]
        if asked.path.startswith("/clusters/") and asked.verb == "GET":
            return "DescribeCluster"
        if asked.path.startswith("/cluster-versions") and asked.verb == "GET":
            return "DescribeClusterVersions"
        return parse_qs(asked.body).get("Action", [f"{asked.verb} {asked.path}"])[0]

    def GetCallerIdentity(self, asked: Request) -> Reply:
        inner = f"<Arn>{self.arn}</Arn><UserId>AROA</UserId><Account>{self.number}</Account>"
        return (
            200,
            XML,
            (
                '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
                f"<GetCallerIdentityResult>{inner}</GetCallerIdentityResult></GetCallerIdentityResponse>"
            ),
        )

    def AssumeRole(self, asked: Request) -> Reply:
        self.arn = (
            parse_qs(asked.body)["RoleArn"][0].replace(":iam:", ":sts:").replace(":role/", ":assumed-role/")
        )
        self.arn += "/preflight"
        self.key = "ASIASIMULATEDROLE"
        inner = (
            f"<AccessKeyId>{self.key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
            "<SessionToken>t</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration>"
        )
        return (
            200,
            XML,
            (
                '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>'
                f"<Credentials>{inner}</Credentials></AssumeRoleResult></AssumeRoleResponse>"
            ),
        )

    def DescribeInstanceTypeOfferings(self, asked: Request) -> Reply:
        machine = parse_qs(asked.body)["Filter.1.Value.1"][0]
        rows = "".join(
            f"<item><instanceType>{machine}</instanceType><locationType>availability-zone</locationType>"
            f"<location>{zone}</location></item>"
            for zone in self.offered.get(machine, [])
        )
        return _ec2(
            "DescribeInstanceTypeOfferings", f"<instanceTypeOfferingSet>{rows}</instanceTypeOfferingSet>"
        )

    def DescribeAvailabilityZones(self, asked: Request) -> Reply:
        rows = "".join(
            f"<item><zoneName>{name}</zoneName><zoneId>{zone}</zoneId><zoneState>available</zoneState></item>"
            for name, zone in self.zones.items()
        )
        return _ec2("DescribeAvailabilityZones", f"<availabilityZoneInfo>{rows}</availabilityZoneInfo>")

    def DescribeCapacityReservations(self, asked: Request) -> Reply:
        expected = parse_qs(asked.body)["CapacityReservationId.1"][0]
        if expected not in self.reservations:
            return self._error(asked, "InvalidCapacityReservationId.NotFound", 400)
        row = "".join(
            f"<{key}>{escape(str(value))}</{key}>" for key, value in self.reservations[expected].items()
        )
        return _ec2(
            "DescribeCapacityReservations",
            f"<capacityReservationSet><item>{row}</item></capacityReservationSet>",
        )

    def ListServiceQuotas(self, asked: Request) -> Reply:
        """Two pages."""
        rows = [{"QuotaName": name, "Value": value} for name, value in self.quotas.items()]
        if "NextToken" in json.loads(asked.body):
            return _json({"Quotas": rows[2:]})
        return _json({"Quotas": rows[:2], "NextToken": "2"})

    def ListAWSDefaultServiceQuotas(self, asked: Request) -> Reply:
        return _json({"Quotas": []})

    def ListCostAllocationTags(self, asked: Request) -> Reply:
        keys = json.loads(asked.body)["TagKeys"]
        rows = [
            {"TagKey": key, "Type": "UserDefined", "Status": status} for key, status in self.cost_tags.items()
        ]
        return _json({"CostAllocationTags": [row for row in rows if row["TagKey"] in keys]})

    def DescribeCluster(self, asked: Request) -> Reply:
        if self.cluster is None:
            return self._error(asked, "ResourceNotFoundException", 404)
        return _json({"cluster": self.cluster})

    def DescribeClusterVersions(self, asked: Request) -> Reply:
        rows = [
            {"clusterVersion": version, "versionStatus": status, "endOfStandardSupportDate": LATER}
            for version, status in self.versions.items()
        ]
        return _json({"clusterVersions": rows})

    def DescribeLogGroups(self, asked: Request) -> Reply:
        return _json({"logGroups": [{"logGroupName": name} for name in self.log_groups]})

    def ListAliases(self, asked: Request) -> Reply:
        return _json({"Aliases": [{"AliasName": name} for name in self.aliases], "Truncated": False})

    def ListSecrets(self, asked: Request) -> Reply:
        assert json.loads(asked.body)["IncludePlannedDeletion"] is True
        return _json({"SecretList": self.secrets})

    def _error(self, asked: Request, code: str, status: int) -> Reply:
        if not _is_query(asked):
            return status, JSON, json.dumps({"__type": code, "message": "simulated"})
        error = f"<Error><Code>{code}</Code><Message>simulated</Message></Error>"
        if "/ec2/" in asked.headers.get("authorization", ""):
            return status, XML, f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>"
        return status, XML, f"<ErrorResponse>{error}<RequestId>1</RequestId></ErrorResponse>"


def _is_query(asked: Request) -> bool:
    return "Action=" in asked.body


def _json(document: dict[str, Any]) -> Reply:
    return 200, JSON, json.dumps(document)


def _ec2(operation: str, inner: str) -> Reply:
    return (
        200,
        XML,
        (
            f'<{operation}Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
            f"<requestId>1</requestId>{inner}</{operation}Response>"
        ),
    )
