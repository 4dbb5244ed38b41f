"""What the requests of Azure's preflight checks find. Each function makes and evaluates one request."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from trainfleet.infra.azure.account import Account
from trainfleet.infra.preflight import Answer, NotAnsweredError
from trainfleet.infra.preflight_requests import enough

ASSIGN = "Microsoft.Authorization/roleAssignments/write"
NOT_AUTOMATIC = ("Microsoft.Insights",)
"""Pulumi's provider registers the others when it creates their first resource
(pulumi/pulumi-azure-native#3479).
"""
SPOT_QUOTA, TOTAL_QUOTA = "lowPriorityCores", "cores"
"""Quotas of a region (az vm list-usage)."""


def caller(account: Account, admins: tuple[str, ...]) -> Answer:
    """Whether the caller may assign roles, and is a member of a group of administrators."""
    rows = account.read("providers/Microsoft.Authorization/permissions", "2022-04-01")["value"]
    who = account.who()
    if not any(_matches(row.get("actions", [])) and not _matches(row.get("notActions", [])) for row in rows):
        return Answer("problem", f"{who} may not assign roles in the subscription")
    if not admins:
        return Answer("ok", who)
    try:
        member = account.groups_of(str(account.claims.get("oid", "")), list(admins))
    except (NotAnsweredError, LookupError) as reason:
        return Answer("warning", f"{who} may assign roles; its groups are not known: {reason}")
    if set(member) & set(admins):
        return Answer("ok", f"{who}, a member of {', '.join(sorted(member))}")
    return Answer("problem", f"{who} is a member of none of them: the cluster layer would be refused")


def _matches(actions: Iterable[str]) -> bool:
    return any(fnmatchcase(ASSIGN.lower(), each.lower()) for each in actions)


def provider(account: Account, name: str) -> Answer:
    """Whether a resource provider is registered."""
    try:
        state = str(account.read(f"providers/{name}", "2021-04-01").get("registrationState", "unknown"))
    except LookupError:
        state = "unknown"
    if state == "Registered":
        return Answer("ok", "registered")
    return Answer("problem" if name in NOT_AUTOMATIC else "warning", state.lower())


def feature(account: Account, name: str) -> Answer:
    """Whether a feature of a resource provider is registered."""
    namespace, _, short = name.partition("/")
    path = f"providers/Microsoft.Features/providers/{namespace}/features/{short}"
    try:
        state = str(account.read(path, "2021-07-01").get("properties", {}).get("state", "unknown"))
    except LookupError:
        state = "unknown"
    return Answer("ok" if state == "Registered" else "problem", state.lower())


def quota(account: Account, region: str, quota: str, needed: int) -> Answer:
    """Whether a quota of vCPUs is large enough: a quota of the region, or that of the family of a size."""
    family = quota
    if quota not in (SPOT_QUOTA, TOTAL_QUOTA):
        if (row := account.size(quota)) is None:
            raise NotAnsweredError(f"{quota} is not offered in {region}, so that its family is not known")
        family = str(row["family"])
    rows = account.read(f"providers/Microsoft.Compute/locations/{region}/usages", "2024-07-01")["value"]
    for row in rows:
        if str(row["name"]["value"]).lower() == family.lower():
            return enough(float(row["limit"]), float(row["currentValue"]), needed)
    raise NotAnsweredError(f"the region lists no quota {family}")


def offered(account: Account, size: str, region: str, zones: tuple[str, ...]) -> Answer:
    """Whether a size is offered in all zones of its pool, without a restriction of the subscription."""
    row = account.size(size)
    if row is None:
        return Answer("problem", f"not in {region}")
    sold = {str(zone) for info in row.get("locationInfo", []) for zone in info.get("zones", [])}
    for restriction in row.get("restrictions", []):
        why = restriction.get("reasonCode", "restricted")
        if restriction["type"] == "Location":
            return Answer("problem", f"restricted in {region}: {why}")
        sold -= {str(each) for each in restriction.get("restrictionInfo", {}).get("zones", [])}
    if missing := sorted({zone.rpartition("-")[2] for zone in zones} - sold):
        return Answer("problem", f"not in zone {', '.join(missing)}; offered in {', '.join(sorted(sold))}")
    return Answer("ok", f"offered in {', '.join(sorted(sold)) or region}")


def reservation(account: Account, group: str, size: str, zones: tuple[str, ...], nodes: int) -> Answer:
    """Whether a capacity reservation group exists, and has reservations for its pool.

    Args:
        account: the subscription's account.
        group: the group's resource id.
        size: the pool's size of machines.
        zones: the pool's zones.
        nodes: the pool's maximum.
    """
    try:
        rows = account.read(f"{group}/capacityReservations", "2024-07-01")["value"]
    except LookupError:
        return Answer("problem", "there is no such group")
    expected = {zone.rpartition("-")[2] for zone in zones}
    fitting = [
        row
        for row in rows
        if row["sku"]["name"].lower() == size.lower()
        and (not expected or set(row.get("zones", [])) & expected)
    ]
    if not fitting:
        held = ", ".join(
            f"{row['sku']['name']} in {'/'.join(row.get('zones', [])) or 'no zone'}" for row in rows
        )
        return Answer("problem", f"reserves {held or 'nothing'}, not {size} in {', '.join(sorted(expected))}")
    count = sum(int(row["sku"].get("capacity", 0)) for row in fitting)
    return Answer("warning" if count < nodes else "ok", f"reserves {count} x {size}")


def no_cluster(account: Account, name: str, platform: str) -> Answer:
    """Whether there is a cluster of the platform's name. Names are unique within a resource group only."""
    cluster = account.cluster()
    if cluster is None or cluster.platform == platform:
        return Answer("ok", "this platform exists" if cluster else "free")
    return Answer("warning", f"the cluster {name} exists without this platform's tag")


def no_deleted_vault(account: Account, prefix: str, region: str) -> Answer:
    """Whether deleted vaults keep names like the platform's. The rest of a name depends on its resource
    group.
    """
    rows = account.read("providers/Microsoft.KeyVault/deletedVaults", "2023-07-01")["value"]
    kept = sorted(
        str(row["name"])
        for row in rows
        if str(row["name"]).startswith(prefix) and row["properties"]["location"].lower() == region
    )
    if kept:
        return Answer("warning", f"{', '.join(kept)}: recover them if they are the platform's")
    return Answer("ok", "none")


def version(account: Account, region: str, expected: str) -> Answer:
    """Whether AKS offers the version in standard support. Source: AKS API, listKubernetesVersions."""
    path = f"providers/Microsoft.ContainerService/locations/{region}/kubernetesVersions"
    # The answer has no pages: its list is called `values`.
    rows = account.read(path, "2025-05-01").get("values", [])
    for row in rows:
        if row["version"] == expected:
            plans = row.get("capabilities", {}).get("supportPlan", [])
            if row.get("isPreview"):
                return Answer("problem", "is a preview")
            if plans and "KubernetesOfficial" not in plans:
                return Answer("problem", "has long-term support only")
            return Answer("ok", "offered")
    return Answer("problem", f"offered: {', '.join(sorted(row['version'] for row in rows))}")
