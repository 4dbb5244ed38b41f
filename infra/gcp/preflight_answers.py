"""What the requests of GCP's preflight checks find. Each function makes and evaluates one request."""

from __future__ import annotations

from collections.abc import Iterable

from trainfleet.infra.gcp.account import Account
from trainfleet.infra.preflight import Answer, NotAnsweredError
from trainfleet.infra.preflight_requests import enough, unused_name

PERMISSIONS = (
    "compute.networks.create",
    "container.clusters.create",
    "iam.serviceAccounts.create",
    "resourcemanager.projects.setIamPolicy",
    "serviceusage.services.enable",
)
"""A sample of what `pulumi up` needs; the roles owner, or editor with IAM administration, have all."""
CHANNEL = "REGULAR"
MEMBER_DOMAINS = "constraints/iam.allowedPolicyMemberDomains"
"""On in organizations since May 2024, with their own domain only (Google Cloud, managing secure-by-default
organization resources). The constraint iam.managed.allowedPolicyMembers, which does the same, is not read.
"""


def caller(account: Account, project: str, admins: tuple[str, ...]) -> Answer:
    """Whether the caller has the permissions of an apply, and is an administrator."""
    path = f"/v1/projects/{project}:testIamPermissions"
    try:
        held = account.read("cloudresourcemanager", path, {"permissions": PERMISSIONS}).get("permissions", [])
    except LookupError:
        return Answer("problem", f"there is no project {project}, or the caller may not see it")
    who = account.who()
    if missing := sorted(set(PERMISSIONS) - set(held)):
        return Answer("problem", f"{who or 'the caller'} lacks {', '.join(missing)}")
    people = {each.rpartition(":")[2] for each in admins if not each.startswith("group:")}
    if not admins or who in people:
        return Answer("ok", who or "has the permissions")
    if not who or len(people) < len(admins):
        return Answer("warning", f"{who or 'the caller'} may be a member of a group: groups are not read")
    return Answer("warning", f"{who} is none of them: access to the cluster comes from its IAM roles alone")


def enabled(account: Account, project: str, api: str) -> Answer:
    """Whether an API is enabled."""
    state = str(
        account.read("serviceusage", f"/v1/projects/{project}/services/{api}").get("state", "unknown")
    )
    return Answer("ok" if state == "ENABLED" else "problem", state.lower())


def members(account: Account, project: str) -> Answer:
    """Whether an organization policy restricts members to domains. Ids of customers are not resolved."""
    path = f"/v1/projects/{project}:getEffectiveOrgPolicy"
    policy = account.read("cloudresourcemanager", path, {"constraint": MEMBER_DOMAINS}).get("listPolicy", {})
    if allowed := policy.get("allowedValues"):
        return Answer(
            "warning",
            f"members are limited to {', '.join(allowed)}: unless Google is one of them, except the project",
        )
    if policy.get("allValues") == "DENY":
        return Answer("problem", "no member may be granted a role: except the project")
    return Answer("ok", "members are not limited to domains")


def quota(account: Account, path: str, metric: str, needed: int) -> Answer:
    """Whether a quota of GPUs is large enough. Newer models have none here: `GPUS-PER-GPU-FAMILY` of Cloud
    Quotas limits them (Compute Engine, GPU quota).
    """
    for row in account.read("compute", path).get("quotas", []):
        if row["metric"] == metric:
            return enough(float(row["limit"]), float(row.get("usage", 0)), needed)
    raise NotAnsweredError(f"Compute Engine lists no {metric} here: see GPUS-PER-GPU-FAMILY in Cloud Quotas")


def offered(account: Account, project: str, machine: str, zones: Iterable[str]) -> Answer:
    """Whether a machine is offered in all zones of its pool."""
    missing, found = [], []
    for zone in zones:
        try:
            account.read("compute", f"/compute/v1/projects/{project}/zones/{zone}/machineTypes/{machine}")
            found.append(zone)
        except LookupError:
            missing.append(zone)
    if missing:
        return Answer("problem", f"not in {', '.join(missing)}")
    return Answer("ok", f"offered in {', '.join(found)}")


def reservation(
    account: Account, *, project: str, name: str, machine: str, zones: Iterable[str], nodes: int
) -> Answer:
    """Whether a reservation is ready in a zone of its pool, and matches it.

    Args:
        account: the project's account.
        project: the project.
        name: the reservation's name.
        machine: the pool's machine.
        zones: the pool's zones.
        nodes: the pool's maximum.
    """
    for zone in zones:
        try:
            row = account.read("compute", f"/compute/v1/projects/{project}/zones/{zone}/reservations/{name}")
        except LookupError:
            continue
        if (status := str(row.get("status", ""))) != "READY":
            return Answer("problem", f"is {status.lower()} in {zone}")
        held = row.get("specificReservation", {})
        kind = str(held.get("instanceProperties", {}).get("machineType", ""))
        if kind and kind != machine:
            return Answer("problem", f"is for {kind}, not {machine}")
        count = int(held.get("count", 0))
        return Answer("warning" if count < nodes else "ok", f"ready: {count} x {kind} in {zone}")
    return Answer("problem", f"there is no such reservation in {', '.join(zones)}")


def no_cluster(account: Account, name: str, platform: str) -> Answer:
    """Whether the cluster's name is free."""
    return unused_name(account, f"the cluster {name}", account.cluster() is not None, platform)


def no_service_account(account: Account, project: str, name: str, platform: str) -> Answer:
    """Whether a service account's name is free."""
    try:
        account.read(
            "iam", f"/v1/projects/{project}/serviceAccounts/{name}@{project}.iam.gserviceaccount.com"
        )
    except LookupError:
        return Answer("ok", "free")
    return unused_name(account, f"the service account {name}", exists=True, platform=platform)


def version(account: Account, project: str, region: str, expected: str) -> Answer:
    """Whether the release channel offers the version. Source: GKE API, locations.getServerConfig."""
    config = account.read("container", f"/v1/projects/{project}/locations/{region}/serverConfig")
    for channel in config.get("channels", []):
        if channel.get("channel") == CHANNEL:
            offered = {".".join(each.split(".")[:2]) for each in channel.get("validVersions", [])}
            shown = ", ".join(sorted(offered))
            return Answer("ok" if expected in offered else "problem", f"offered: {shown}")
    raise NotAnsweredError(f"GKE lists no channel {CHANNEL} in {region}")
