"""What the requests of AWS' preflight checks find. Each function makes and evaluates one request."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from trainfleet.infra.aws.account import Account
from trainfleet.infra.aws.layout import NO_CONTROL_PLANE
from trainfleet.infra.preflight import Answer, NotAnsweredError, Status
from trainfleet.infra.preflight_requests import enough, unused_name

PLAN_STATUS: dict[str, Status] = {"Active": "ok", "Scheduled": "warning"}
"""Of a training plan (SageMaker API, TrainingPlanStatus); any other is a problem."""


def caller(account: Account, admins: tuple[str, ...], expected: str) -> Answer:
    """Whether the caller is an administrator, in the expected account (empty = any)."""
    arn, number = account.who(), str(account.identity["Account"])
    if expected and number != expected:
        return Answer("problem", f"{arn} is in the account {number}, not in {expected}")
    if not admins or _principal(arn) in {_principal(each) for each in admins}:
        return Answer("ok", arn)
    return Answer("problem", f"{arn} is none of them: the cluster layer would be refused")


def _principal(arn: str) -> tuple[str, str, str]:
    """Account, kind and name of a principal. A session's ARN lacks the path of its role (IAM user guide,
    IAM identifiers), so that paths are left out.
    """
    *_, number, resource = arn.split(":", 5)
    kind, *path = resource.split("/")
    if kind == "assumed-role":
        return number, "role", path[0]
    return number, kind, path[-1] if path else ""


def quota(account: Account, name: str, needed: int) -> Answer:
    """Whether a quota of EC2 is large enough. What is in use is not known to Service Quotas."""
    for operation in ("ListServiceQuotas", "ListAWSDefaultServiceQuotas"):
        rows = account.read("service-quotas", operation, ServiceCode="ec2").get("Quotas", [])
        for row in rows:
            if row["QuotaName"] == name:
                return enough(float(row["Value"]), None, needed)
    raise NotAnsweredError(f"Service Quotas lists no `{name}` in this region")


def cost_tag(account: Account, tag: str) -> Answer:
    """Whether a cost allocation tag is active. Only the payer account may list them."""
    rows = account.read("ce", "ListCostAllocationTags", TagKeys=[tag]).get("CostAllocationTags", [])
    status = next((str(row["Status"]) for row in rows if row["TagKey"] == tag), "")
    if status == "Active":
        return Answer("ok", "is active")
    return Answer(
        "warning", "is inactive" if status else "is not listed yet: activate it after the first apply"
    )


def zones(account: Account, names: set[str], control_plane: tuple[str, ...]) -> Answer:
    """Whether the account has these zones, and EKS places control planes in some of them."""
    rows = account.read("ec2", "DescribeAvailabilityZones").get("AvailabilityZones", [])
    ids = {str(row["ZoneName"]): str(row["ZoneId"]) for row in rows if row.get("State") == "available"}
    if missing := sorted(names - set(ids)):
        return Answer("problem", f"not {', '.join(missing)}; the account has {', '.join(sorted(ids))}")
    if barred := [f"{zone} is {ids[zone]}" for zone in control_plane if ids[zone] in NO_CONTROL_PLANE]:
        fix = "use network.existing with control_plane_subnets in other zones"
        return Answer("problem", f"{', '.join(barred)}, where EKS places none: {fix}")
    return Answer("ok", ", ".join(f"{zone} is {ids[zone]}" for zone in control_plane))


def offered(account: Account, machine: str, zones: Iterable[str]) -> Answer:
    """Whether a machine is offered in all zones of its pool."""
    request = {"Name": "instance-type", "Values": [machine]}
    answer = account.read(
        "ec2", "DescribeInstanceTypeOfferings", LocationType="availability-zone", Filters=[request]
    )
    found = sorted(str(row["Location"]) for row in answer.get("InstanceTypeOfferings", []))
    if missing := sorted(set(zones) - set(found)):
        return Answer(
            "problem",
            f"not in {', '.join(missing)}; offered in {', '.join(found) or 'no zone of the region'}",
        )
    return Answer("ok", f"offered in {', '.join(found)}")


def reservation(account: Account, name: str, machine: str, zones: tuple[str, ...], nodes: int) -> Answer:
    """Whether a capacity reservation is active, and matches its pool.

    Args:
        account: the account.
        name: the reservation's id.
        machine: the pool's machine.
        zones: the pool's zones.
        nodes: the pool's maximum.
    """
    try:
        rows = account.read("ec2", "DescribeCapacityReservations", CapacityReservationIds=[name])
        (row,) = rows["CapacityReservations"]
    except LookupError:
        return Answer("problem", "there is no such reservation in this region")
    state, kind, zone = row["State"], row["InstanceType"], row.get("AvailabilityZone", "")
    wrong = _mismatch(kind, machine, [zone], zones)
    if state == "scheduled":
        return Answer("problem" if wrong else "warning", wrong or f"begins {_day(row.get('StartDate'))}")
    if state != "active":
        return Answer("problem", f"is {state}")
    if wrong:
        return Answer("problem", wrong)
    total = int(row.get("TotalInstanceCount", 0))
    found = f"active: {total} x {kind} in {zone}"
    return Answer("warning" if total < nodes else "ok", found)


def training_plan(account: Account, arn: str, machine: str, zones: tuple[str, ...]) -> Answer:
    """Whether a training plan of SageMaker is active, and matches its pool."""
    try:
        plan = account.read("sagemaker", "DescribeTrainingPlan", TrainingPlanName=arn.rpartition("/")[2])
    except LookupError:
        return Answer("problem", "there is no such training plan in this region")
    capacity = plan.get("ReservedCapacitySummaries", [])
    kinds = {str(row["InstanceType"]) for row in capacity}
    if kinds and machine not in kinds:
        return Answer("problem", f"holds {', '.join(sorted(kinds))}, not {machine}")
    in_zones = [str(row["AvailabilityZone"]) for row in capacity if "AvailabilityZone" in row]
    if in_zones and not set(in_zones) & set(zones):
        return Answer("problem", f"is in {', '.join(in_zones)}, the pool in {', '.join(zones)}")
    status = str(plan["Status"])
    return Answer(PLAN_STATUS.get(status, "problem"), f"is {status.lower()}")


def _mismatch(kind: str, machine: str, found: list[str], zones: tuple[str, ...]) -> str:
    if kind != machine:
        return f"is for {kind}, not {machine}"
    return "" if set(found) & set(zones) else f"is in {', '.join(found)}, the pool in {', '.join(zones)}"


def _day(when: Any) -> str:
    return f"{when:%Y-%m-%d}" if isinstance(when, datetime) else "later"


def no_cluster(account: Account, name: str, platform: str) -> Answer:
    """Whether the cluster's name is free."""
    return unused_name(account, f"the cluster {name}", account.cluster() is not None, platform)


def no_log_group(account: Account, name: str, platform: str) -> Answer:
    """Whether the log group's name is free; a production platform leaves it behind."""
    rows = account.read("logs", "DescribeLogGroups", logGroupNamePrefix=name).get("logGroups", [])
    exists = any(row["logGroupName"] == name for row in rows)
    return unused_name(account, f"the log group {name}", exists, platform)


def no_alias(account: Account, prefix: str, platform: str) -> Answer:
    """Whether no key has an alias of the platform."""
    rows = account.read("kms", "ListAliases").get("Aliases", [])
    taken = [str(row["AliasName"]) for row in rows if str(row["AliasName"]).startswith(prefix)]
    return unused_name(account, ", ".join(sorted(taken)), bool(taken), platform)


def no_secret(account: Account, prefix: str, platform: str) -> Answer:
    """Whether no secret has a name of the platform, also none that waits for its deletion."""
    rows = account.read(
        "secretsmanager",
        "ListSecrets",
        IncludePlannedDeletion=True,
        Filters=[{"Key": "name", "Values": [prefix]}],
    ).get("SecretList", [])
    taken = [row for row in rows if str(row["Name"]).startswith(prefix)]
    if deleted := [str(row["Name"]) for row in taken if row.get("DeletedDate")]:
        return Answer(
            "problem", f"{', '.join(sorted(deleted))} is scheduled for deletion: restore or force it"
        )
    return unused_name(account, ", ".join(sorted(row["Name"] for row in taken)), bool(taken), platform)


def version(account: Account, expected: str) -> Answer:
    """Whether EKS has the version in standard support. Source: EKS API, DescribeClusterVersions."""
    rows = account.read("eks", "DescribeClusterVersions", includeAll=True).get("clusterVersions", [])
    for row in rows:
        if row["clusterVersion"] == expected:
            end = row.get("endOfStandardSupportDate")
            status = str(row.get("versionStatus", "")).lower().replace("_", " ")
            if status and status != "standard support":
                return Answer("problem", f"is in {status}")
            if isinstance(end, datetime) and (end - datetime.now(UTC)).days < 90:
                return Answer("warning", f"standard support until {end:%Y-%m-%d}")
            return Answer("ok", f"standard support until {_day(end)}")
    return Answer("problem", f"offered: {', '.join(sorted(str(row['clusterVersion']) for row in rows))}")
