"""docs/reference/relations.md: the relations between resources that a rehearsal checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tools.reference.pages import header
from tools.reference.tables import code, table


class Kind(NamedTuple):
    """A kind of rule: its title, and what the simulated cloud refuses."""

    title: str
    refused: str


KINDS: Mapping[str, Kind] = {
    "in_use": Kind("References that prevent a deletion", "Deleting what another resource still refers to."),
    "inside": Kind(
        "Address ranges", "A range outside that of its network, or one that overlaps another range there."
    ),
    "zones": Kind("Zones", "Subnets in fewer zones than the service needs."),
    "same_zones": Kind("Zones that stay", "An update that moves a control plane to other zones."),
    "agree": Kind(
        "Networks, regions and locations", "References that lead into different networks or places."
    ),
    "requires": Kind("Prerequisites", "A resource before the one that it depends on."),
    "forbidden": Kind("Settings of another resource", "What a setting of the referenced resource forbids."),
    "named_in": Kind("Names and zones", "A name that is not in the zone of its record."),
    "public_policy": Kind("Public policies", "A policy for everybody where public policies are blocked."),
    "trusted": Kind("Roles and services", "A role whose trust policy does not allow the service to take it."),
    "default_account": Kind("Default accounts", "Nodes without an account, where the default one is gone."),
    "granted": Kind(
        "Rights before use",
        "A resource whose identity has no role on the key, zone or group that it uses, or one that was"
        " assigned without a wait of the minutes that it may take to have effect.",
    ),
    "restricted_to_domains": Kind(
        "Members and organization policies", "A member outside the domains that the organization allows."
    ),
    "enabled": Kind("APIs", "A resource of an API that the program enables later or not at all."),
    "supported": Kind("Versions and dates", "A new cluster with a version out of support on that day."),
    "skew": Kind(
        "Nodes and control planes", "Nodes newer than their control plane, or too many minor versions older."
    ),
    "upgrade": Kind("Upgrades", "A version that skips a minor version, or goes back further than allowed."),
    "separate": Kind("Folders of a file system", "Two links with overlapping folders or prefixes."),
    "called_back": Kind(
        "Security groups of file systems", "Clients whose security group does not admit the servers."
    ),
    "servers_admitted": Kind(
        "Firewalls of file systems", "A network whose firewall does not admit the servers' connections."
    ),
    "lustre_prerequisites": Kind(
        "Prerequisites of Azure Managed Lustre", "A subnet or vault without what the service documents."
    ),
    "key_reached_privately": Kind(
        "Keys in private vaults", "A cluster whose control plane cannot reach its key's vault."
    ),
    "reserved_in_group": Kind(
        "Reservations and placement groups", "A reservation used in a placement group made by the program."
    ),
    "bought_as": Kind(
        "Node groups and how they are bought", "A capacity type that contradicts the launch template."
    ),
    "class_pools": Kind(
        "Compute classes and node pools", "A node pool in a class without its label and taint."
    ),
    "expander_order": Kind(
        "Autoscalers and the order of node groups", "The expander `priority` without its ConfigMap."
    ),
    "network_cards": Kind("Network cards", "Network interfaces that the machine's cards do not have."),
    "quota": Kind("Quotas of a new account", "More resources of a type than a new account may have."),
    "kept_name": Kind(
        "Names of deleted resources",
        "A name that the cloud keeps after a deletion: in a replacement that deletes first, and in an apply"
        " after a destroy.",
    ),
    "critical_pods": Kind(
        "Priority classes on GKE", "Critical pods outside kube-system without a quota for their class."
    ),
    "pod_security": Kind(
        "Namespaces and pods", "Pods that violate the Pod Security level of their namespace."
    ),
    "within_quota": Kind("Quotas and requests", "Pods that lack a request, or exceed a quota."),
    "empty_pools": Kind(
        "Extended resources of empty pools", "A device whose resource the autoscaler does not know."
    ),
    "requested_pools": Kind(
        "Queues and queued pools", "A queue without the admission check that requests its nodes."
    ),
    "placed_flavors": Kind("Queues and topologies", "A flavor whose topology does not exist."),
    "reached_registry": Kind("Images and egress", "Public images on nodes without egress."),
}
GAPS = """## Known gaps

A rule is checked when the resource is created or updated, against what exists at that moment. Not simulated:

- resources that the program does not create: networks, roles, keys, policies and quotas of your organization;
- security groups, firewalls, routes and network policies as packets meet them, except for API servers and
  shared filesystems;
- IAM: whether a policy lets a caller do what it does, and organization policies other than allowed domains;
- what a controller in the cluster does later: scheduling, Kueue's admission, autoscaling, certificates.
  `trainfleet rehearse --on-cluster` creates the objects in a real API server;
- pods that launchers create for a run: whether each path in their environment is mounted, and whether an
  empty pool of EKS is known to have EFA, by the tags of its scaling group. Tests of the launchers and pools
  check both;
- time, except for names and for roles on Azure, where a wait counts for every role that was assigned before
  it. On AWS, what a new role cannot do yet is not simulated. On Google Cloud, a grant on a key has effect
  within seconds, in rare cases minutes (KMS documentation, consistency; IAM, access change propagation): an
  apply that fails for it is repeated;
- capacity, quotas by machine, and names that something outside the program has or had: see
  `trainfleet preflight`.
"""
REACHABLE = """## API servers

`trainfleet rehearse --from laptop|ci|runner` refuses objects of a cluster whose API server is not reachable
from there: a private endpoint from outside, a public endpoint without ranges, a private endpoint of EKS whose
security groups do not admit port 443, a DNS endpoint of GKE that admits no external traffic. Sources: EKS
user guide, cluster endpoint access control; GKE documentation, network isolation; AKS documentation, API
server access.
"""


def markdown() -> str:
    """The page."""
    from trainfleet.rehearsal.simulation.stateful_rules import rules

    found = rules()
    count = sum(len(rows) for kind in found.values() for rows in kind.values())
    parts = [
        header("Relations"),
        "A cloud refuses a resource because of what else exists. These relations are simulated in a rehearsal"
        " of Trainfleet's platforms and of any other program."
        f" There are {count} rules of {len(found)} kinds.\n",
        REACHABLE,
    ]
    for name, kind in KINDS.items():
        rows = [(code(token), row["source"]) for token, rows in sorted(found[name].items()) for row in rows]
        parts += [f"## {kind.title}\n", f"Refused: {kind.refused[0].lower()}{kind.refused[1:]}\n"]
        parts.append(table(("Type", "Source"), rows))
    return "\n".join([*parts, GAPS])
