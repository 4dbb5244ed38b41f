"""Rules on what runs beside the nodes: Kubernetes, storage, Ray, secrets, the budget, tags and exceptions
from policies.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from datetime import date

from trainfleet.infra.aws.layout import LOG_RETENTION_DAYS
from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, standing_usd_per_hour
from trainfleet.infra.kubernetes.crds import versions
from trainfleet.infra.spec.schema import Cloud, PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.pydantic_messages import Path
from trainfleet.suggestions import nearest

KUBERNETES_VERSIONS = ("1.33", "1.34", "1.35")
"""What EKS sells in November 2026 (EKS user guide, version lifecycle) and infra/aws/addons.py has pinned
add-ons for.
"""
LUSTRE_STEP_GIB, LUSTRE_SMALLEST_GIB, LUSTRE_LARGEST_GIB = 2400, 1200, 100800
TOKEN_AUTH_RAY = (2, 52, 0)
OWN_TAGS = 5
"""Tags that every resource gets from the platform itself (infra/tags.py)."""
_ARN = r"arn:aws(-cn|-us-gov)?:iam::\d{12}:(role|user)/.+"
_TAG = r"[\w\s+=.:/@-]*"


def kubernetes_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """EKS sells a version for 26 months, and its add-ons are pinned per version."""
    if spec.cloud is Cloud.AWS and spec.kubernetes.version not in KUBERNETES_VERSIONS:
        yield Finding(
            ("kubernetes", "version"),
            f"Kubernetes {spec.kubernetes.version} is not one of those this release runs on EKS",
            f"one of {', '.join(KUBERNETES_VERSIONS)}",
            (("cloud",),),
        )


def logs_are_kept_as_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """CloudWatch Logs accepts a fixed list of retentions (API PutRetentionPolicy)."""
    days = spec.kubernetes.log_retention_days
    if spec.cloud is Cloud.AWS and days not in LOG_RETENTION_DAYS:
        longer = next((each for each in LOG_RETENTION_DAYS if each >= days), LOG_RETENTION_DAYS[-1])
        yield Finding(
            ("kubernetes", "log_retention_days"),
            f"CloudWatch does not keep logs for {days} days",
            f"{longer}, or another of {', '.join(map(str, LOG_RETENTION_DAYS))}",
            (("cloud",),),
        )


def admins_are_roles(spec: PlatformSpec) -> Iterator[Finding]:
    """An access entry names an IAM role or user by its ARN."""
    if spec.cloud is not Cloud.AWS:
        return
    for index, admin in enumerate(spec.kubernetes.admins):
        if not re.fullmatch(_ARN, admin):
            yield Finding(
                ("kubernetes", "admins", index),
                f"`{admin}` is not the ARN of a role",
                "arn:aws:iam::111122223333:role/platform-admin",
                (("cloud",),),
            )


def launchers_are_named(spec: PlatformSpec) -> Iterator[Finding]:
    """AWS maps a role to a group by its ARN; a cluster that is there knows groups by name, and keeps
    `system:` for itself.
    """
    for index, launcher in enumerate(spec.kubernetes.launchers):
        where: Path = ("kubernetes", "launchers", index)
        if spec.cloud is Cloud.AWS and not re.fullmatch(_ARN, launcher):
            yield Finding(
                where,
                f"`{launcher}` is not the ARN of a role",
                "arn:aws:iam::111122223333:role/ml-engineer",
                (("cloud",),),
            )
        elif spec.cloud is Cloud.LOCAL and (not launcher.strip() or launcher.startswith("system:")):
            yield Finding(
                where,
                f"`{launcher}` is not a group of yours",
                "a group's name, as the cluster's login gives it",
                (("cloud",),),
            )


def launchers_are_no_admins(spec: PlatformSpec) -> Iterator[Finding]:
    """An administrator may launch already; and a cloud takes each identity once (EKS refuses a second access
    entry).
    """
    for index, launcher in enumerate(spec.kubernetes.launchers):
        if launcher in spec.kubernetes.admins:
            yield Finding(
                ("kubernetes", "launchers", index),
                f"`{launcher}` is an administrator already",
                "leave it out here",
                (("kubernetes", "admins"),),
            )


def filesystem_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """FSx for Lustre on SSD comes in 1200 GiB, 2400 GiB and steps of 2400 GiB (FSx API, CreateFileSystem
    StorageCapacity).
    """
    wish = spec.storage.shared_filesystem
    if spec.cloud is not Cloud.AWS or wish is None:
        return
    path: Path = ("storage", "shared_filesystem")
    size = wish.capacity_gib
    if wish.kind == "nfs":
        yield Finding((*path, "kind"), "`nfs` on aws is coming with a later release", "lustre", (("cloud",),))
    elif size > LUSTRE_LARGEST_GIB:
        yield Finding(
            (*path, "capacity_gib"),
            f"{size} GiB is more than one filesystem can have",
            f"at most {LUSTRE_LARGEST_GIB}",
            (("cloud",), (*path, "kind")),
        )
    elif size != LUSTRE_SMALLEST_GIB and size % LUSTRE_STEP_GIB:
        above = (
            LUSTRE_SMALLEST_GIB
            if size < LUSTRE_SMALLEST_GIB
            else -(-size // LUSTRE_STEP_GIB) * LUSTRE_STEP_GIB
        )
        yield Finding(
            (*path, "capacity_gib"),
            f"FSx for Lustre is not sold with {size} GiB",
            f"{above}: 1200, 2400, and more in steps of 2400",
            (("cloud",), (*path, "kind")),
        )


def operator_is_known(spec: PlatformSpec) -> Iterator[Finding]:
    """The operator is installed with its own resource definitions; others would accept fields that it does
    not know.
    """
    known = versions()
    if spec.ray.operator not in known:
        yield Finding(
            ("ray", "operator"),
            f"no resource definitions of KubeRay {spec.ray.operator} are here",
            f"one of {', '.join(known)}",
        )


def ray_can_authenticate(spec: PlatformSpec) -> Iterator[Finding]:
    """Token authentication came with Ray 2.52.0 (Ray documentation, token authentication with KubeRay)."""
    if spec.ray.token_auth and tuple(map(int, spec.ray.version.split("."))) < TOKEN_AUTH_RAY:
        newest = ".".join(map(str, TOKEN_AUTH_RAY))
        where: Path = ("ray", "version")
        yield Finding(
            where,
            f"Ray {spec.ray.version} knows no token authentication",
            f"{newest} or newer, or ray.token_auth: false",
            (("ray", "token_auth"),),
        )


def image_is_pinned(spec: PlatformSpec) -> Iterator[Finding]:
    """`latest` is another image tomorrow, and then nodes of one run differ."""
    image = spec.ray.image
    last = image.rsplit("/", maxsplit=1)[-1]
    if not image:
        return
    if re.search(r"\s", image) or not re.fullmatch(r"[\w.:/@-]+", image):
        yield Finding(("ray", "image"), f"`{image}` is not an image", "registry/name:tag")
    elif "@" not in last and (":" not in last or last.endswith(":latest")):
        yield Finding(
            ("ray", "image"),
            f"`{image}` is another image whenever it is pulled",
            "a tag that is never moved, or a digest",
        )


def budget_alerts_are_in_order(spec: PlatformSpec) -> Iterator[Finding]:
    """Each share gives one alert, in the order in which they will come."""
    if spec.budget is None:
        return
    shares = spec.budget.alert_at
    if list(shares) != sorted(set(shares)):
        yield Finding(
            ("budget", "alert_at"),
            "shares stand twice or out of order",
            f"[{', '.join(f'{share:g}' for share in sorted(set(shares)))}]",
        )
    if not shares:
        yield Finding(("budget", "alert_at"), "is empty: nobody would be told", "for example [0.5, 0.8, 1.0]")


def budget_covers_what_always_runs(spec: PlatformSpec) -> Iterator[Finding]:
    """Nodes that are kept running (min_nodes) are paid whether anyone trains or not."""
    if spec.budget is None or spec.cloud is Cloud.LOCAL:
        return
    always = standing_usd_per_hour(spec) * HOURS_PER_MONTH
    if always > spec.budget.monthly_usd:
        yield Finding(
            ("budget", "monthly_usd"),
            f"the nodes that always run cost about {always:,.0f} USD a month, more than the budget of {spec.budget.monthly_usd:,.0f}",
            "a larger budget, or smaller min_nodes",
            (("cloud",), ("system_pool",), ("gpu_pools",)),
        )


def lists_have_no_doubles(spec: PlatformSpec) -> Iterator[Finding]:
    """The second of two equal names would be a resource that is already there."""
    lists: list[tuple[Path, Sequence[Hashable]]] = [
        (("secrets", "names"), spec.secrets.names),
        (("kubernetes", "admins"), spec.kubernetes.admins),
        (("kubernetes", "launchers"), spec.kubernetes.launchers),
    ]
    if spec.budget is not None:
        lists.append((("budget", "emails"), spec.budget.emails))
    for path, members in lists:
        for index, member in enumerate(members):
            if member in members[:index]:
                yield Finding((*path, index), f"`{member}` stands here twice", "keep one")
    seen: set[tuple[str, str]] = set()
    for index, exception in enumerate(spec.exceptions):
        if (exception.policy, exception.resource) in seen:
            yield Finding(
                ("exceptions", index),
                f"`{exception.policy}` of `{exception.resource}` stands here twice",
                "keep one",
            )
        seen.add((exception.policy, exception.resource))


def tags_are_free(spec: PlatformSpec) -> Iterator[Finding]:
    """AWS keeps `aws:`, allows 50 tags, keys of 128 and values of 256 characters (tag restrictions); the
    platform sets its own.
    """
    for key, value in spec.tags.items():
        where: Path = ("tags", key)
        if key.lower().startswith("aws:"):
            yield Finding(where, "tags that start with aws: are kept by AWS", "another key")
        elif key.startswith("trainfleet:") or key == "Name":
            yield Finding(where, "is set by the platform itself", "another key")
        elif not 1 <= len(key) <= 128 or not re.fullmatch(_TAG, key):
            yield Finding(
                where, "is not the key of a tag", "1 to 128 letters, digits, spaces and + - = . _ : / @"
            )
        elif len(value) > 256 or not re.fullmatch(_TAG, value):
            yield Finding(
                where, "is not the value of a tag", "up to 256 letters, digits, spaces and + - = . _ : / @"
            )
    if len(spec.tags) > 50 - OWN_TAGS:
        yield Finding(
            ("tags",),
            f"{len(spec.tags)} tags are too many",
            f"at most {50 - OWN_TAGS}, as AWS allows 50 and the platform sets {OWN_TAGS}",
        )


def exceptions_have_not_ended(spec: PlatformSpec) -> Iterator[Finding]:
    """An exception from a policy holds up to its date; then the resource is mended, or the exception is
    argued anew.
    """
    for index, exception in enumerate(spec.exceptions):
        if exception.until < date.today():
            yield Finding(
                ("exceptions", index, "until"),
                f"this exception from `{exception.policy}` ended on {exception.until}",
                "mend the resource and delete the exception, or renew it with a reason",
            )


def exceptions_name_policies(spec: PlatformSpec) -> Iterator[Finding]:
    """An exception from a policy that does not exist excepts nothing, and nobody notices before the policy
    stops an apply.
    """
    if not spec.exceptions:
        return
    # The one thing that a spec says about policies. They know nothing of specs, and are read only where an
    # exception is written.
    from trainfleet.policies.catalogue import policy_names

    known = policy_names()
    for index, exception in enumerate(spec.exceptions):
        if exception.policy not in known:
            near = nearest(exception.policy, known)
            fix = f"did you mean `{near}`?" if near else "one that `trainfleet policies` lists"
            yield Finding(("exceptions", index, "policy"), f"`{exception.policy}` is not a policy", fix)
