"""Rules on services: Ray, the image, the budget, tags, and exceptions from policies."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence

from trainfleet.dates import today
from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, standing_usd_per_hour
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.kubernetes.crds import versions
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.pools import CLOUD
from trainfleet.pydantic_messages import Path
from trainfleet.suggestions import nearest

TOKEN_AUTH_RAY = (2, 52, 0)
OWN_TAGS = 5
"""Tags that the platform sets on every resource (infra/tags.py)."""
_TAG = r"[\w\s+=.:/@-]*"


def launchers_are_not_admins(spec: PlatformSpec) -> Iterator[Finding]:
    """An administrator may already launch, and EKS rejects a second access entry for one identity."""
    for index, launcher in enumerate(spec.kubernetes.launchers):
        if launcher in spec.kubernetes.admins:
            yield Finding(
                ("kubernetes", "launchers", index),
                f"`{launcher}` is already an administrator",
                "leave it out here",
                (("kubernetes", "admins"),),
            )


def runs_are_not_kept_longer(spec: PlatformSpec) -> Iterator[Finding]:
    """Old versions of runs have a period of their own within that of the bucket. Without versions, there is
    one for the whole bucket (Cloud Storage and Blob Storage documentation, soft delete).
    """
    kept, where = spec.storage, ("storage", "runs_retention_days")
    days = kept.runs_retention_days
    if days is None or spec.cloud is Cloud.LOCAL:
        return
    if not kept.versioning and days != kept.retention_days:
        what = "is for old versions, and the bucket keeps none"
        yield Finding(where, what, "storage.versioning: true, or leave it out", (("storage", "versioning"),))
    elif days > kept.retention_days:
        what = f"runs would be kept for {days} days, and everything else for {kept.retention_days}"
        yield Finding(where, what, f"at most {kept.retention_days}", (("storage", "retention_days"),))


def operator_is_known(spec: PlatformSpec) -> Iterator[Finding]:
    """The operator needs its own resource definitions. Others would accept fields that it does
    not support.
    """
    known = versions()
    if spec.ray.operator not in known:
        yield Finding(
            ("ray", "operator"),
            f"this release has no resource definitions of KubeRay {spec.ray.operator}",
            f"one of {', '.join(known)}",
        )


def ray_can_authenticate(spec: PlatformSpec) -> Iterator[Finding]:
    """Token authentication came with Ray 2.52.0 (Ray documentation, token authentication with KubeRay)."""
    if spec.ray.token_auth and tuple(map(int, spec.ray.version.split("."))) < TOKEN_AUTH_RAY:
        newest = ".".join(map(str, TOKEN_AUTH_RAY))
        where: Path = ("ray", "version")
        yield Finding(
            where,
            f"Ray {spec.ray.version} has no token authentication",
            f"{newest} or newer, or ray.token_auth: false",
            (("ray", "token_auth"),),
        )


def image_is_pinned(spec: PlatformSpec) -> Iterator[Finding]:
    """A tag that moves gives the nodes of one run different images."""
    image = spec.ray.image
    last = image.rsplit("/", maxsplit=1)[-1]
    if not image:
        return
    if re.search(r"\s", image) or not re.fullmatch(r"[\w.:/@-]+", image):
        yield Finding(("ray", "image"), f"`{image}` is not an image", "registry/name:tag")
    elif "@" not in last and (":" not in last or last.endswith(":latest")):
        yield Finding(
            ("ray", "image"),
            f"`{image}` can be a different image with every pull",
            "a tag that never moves, or a digest",
        )


def budget_alerts_are_in_order(spec: PlatformSpec) -> Iterator[Finding]:
    """Each share gives one alert."""
    if spec.budget is None:
        return
    shares = spec.budget.alert_at
    if list(shares) != sorted(set(shares)):
        yield Finding(
            ("budget", "alert_at"),
            "shares are repeated or out of order",
            f"[{', '.join(f'{share:g}' for share in sorted(set(shares)))}]",
        )
    if not shares:
        yield Finding(
            ("budget", "alert_at"), "is empty, so no alert would be sent", "for example [0.5, 0.8, 1.0]"
        )


def budget_covers_standing_nodes(spec: PlatformSpec) -> Iterator[Finding]:
    """The min_nodes of every pool are billed whether anyone trains or not."""
    if spec.budget is None:
        return
    always = standing_usd_per_hour(spec) * HOURS_PER_MONTH
    if always > spec.budget.monthly_usd:
        yield Finding(
            ("budget", "monthly_usd"),
            f"the nodes that always run cost about {always:,.0f} USD a month, "
            f"more than the budget of {spec.budget.monthly_usd:,.0f}",
            "a larger budget, or smaller min_nodes",
            (CLOUD, ("system_pool",), ("gpu_pools",)),
        )


def lists_have_no_duplicates(spec: PlatformSpec) -> Iterator[Finding]:
    """Two equal entries would create the same resource twice."""
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
                yield Finding((*path, index), f"`{member}` is listed twice", "keep one")
    seen: set[tuple[str, str, str]] = set()
    for index, exception in enumerate(spec.exceptions):
        if (exception.policy, exception.resource, exception.type) in seen:
            yield Finding(
                ("exceptions", index),
                f"`{exception.policy}` of `{exception.resource}` is listed twice",
                "keep one",
            )
        seen.add((exception.policy, exception.resource, exception.type))


def tags_are_free(spec: PlatformSpec) -> Iterator[Finding]:
    """AWS reserves `aws:` and allows 50 tags with keys of 128 and values of 256 characters (tag
    restrictions).

    The limits hold for every cloud, so that a spec can move.
    """
    for key, value in spec.tags.items():
        where: Path = ("tags", key)
        if key.lower().startswith("aws:"):
            yield Finding(where, "tags that start with aws: are reserved by AWS", "another key")
        elif key.startswith("trainfleet:") or key == "Name":
            yield Finding(where, "is set by the platform itself", "another key")
        elif not 1 <= len(key) <= 128 or not re.fullmatch(_TAG, key):
            yield Finding(
                where, "is not a valid tag key", "1 to 128 letters, digits, spaces and + - = . _ : / @"
            )
        elif len(value) > 256 or not re.fullmatch(_TAG, value):
            yield Finding(
                where, "is not a valid tag value", "up to 256 letters, digits, spaces and + - = . _ : / @"
            )
    if len(spec.tags) > 50 - OWN_TAGS:
        yield Finding(
            ("tags",),
            f"{len(spec.tags)} tags are too many",
            f"at most {50 - OWN_TAGS}, as AWS allows 50 and the platform sets {OWN_TAGS}",
        )


def exceptions_have_not_expired(spec: PlatformSpec) -> Iterator[Finding]:
    """An exception from a policy holds up to its date."""
    for index, exception in enumerate(spec.exceptions):
        if exception.until < today():
            yield Finding(
                ("exceptions", index, "until"),
                f"this exception from `{exception.policy}` expired on {exception.until}",
                "fix the resource and delete the exception, or renew it with a reason",
            )


def exceptions_are_narrow(spec: PlatformSpec) -> Iterator[Finding]:
    """An exception for every resource would hide what is added later."""
    for index, exception in enumerate(spec.exceptions):
        if exception.resource == "*" and not exception.type:
            yield Finding(
                ("exceptions", index, "resource"),
                f"`*` without a type exempts the whole stack from `{exception.policy}`",
                "the name of the resource, or a `type`",
            )


def exceptions_name_policies(spec: PlatformSpec) -> Iterator[Finding]:
    """An exception from a misspelt policy has no effect, which would show only when the policy fails an
    apply.
    """
    for index, name, near in _unknown_policies(spec):
        if near:
            what = f"`{name}` is not a policy"
            yield Finding(("exceptions", index, "policy"), what, f"did you mean `{near}`?")


def exceptions_of_own_policies(spec: PlatformSpec) -> Iterator[Finding]:
    """A policy pack can have rules of its own, whose names the spec does not know."""
    for index, name, near in _unknown_policies(spec):
        if not near:
            what = f"`{name}` is not one of Trainfleet's policies"
            fix = "correct if it is a rule of your own pack; `trainfleet policies` lists the others"
            yield Finding(("exceptions", index, "policy"), what, fix)


def _unknown_policies(spec: PlatformSpec) -> Iterator[tuple[int, str, str | None]]:
    """The index of each exception from an unknown policy, the policy, and a known one with a similar name."""
    if not spec.exceptions:
        return
    from trainfleet.policies.catalogue import policy_names

    known = policy_names()
    for index, exception in enumerate(spec.exceptions):
        if exception.policy not in known:
            yield index, exception.policy, nearest(exception.policy, known)
