"""Rules on where a platform is: its region, its account, and settings of existing clusters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainfleet.infra.cloud_support import support
from trainfleet.infra.spec.part import STORE_PORT
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.pools import CLOUD


def region_is_named(spec: PlatformSpec) -> Iterator[Finding]:
    """Every resource of a cloud is in a region."""
    cloud = support(spec.cloud)
    if cloud.creates_cluster and not spec.region:
        fix = f"the region of {spec.cloud}, for example {cloud.region_example}"
        yield Finding(("region",), "is missing", fix, (CLOUD,))


def account_is_named(spec: PlatformSpec) -> Iterator[Finding]:
    """Where resource names start with a project or subscription, a preview that guessed it would describe
    somebody else's.
    """
    account = support(spec.cloud).account
    if account is None:
        return
    if not spec.account and account.required:
        what = f"is missing: on {spec.cloud} every resource belongs to a {account.noun}"
        yield Finding(("account",), what, account.example, (CLOUD,))
    elif spec.account and not re.fullmatch(account.pattern, spec.account):
        what = f"`{spec.account}` is not the id of a {account.noun}"
        yield Finding(("account",), what, account.example, (CLOUD,))


def existing_cluster_settings(spec: PlatformSpec) -> Iterator[Finding]:
    """A cloud creates its own cluster and bucket, so it would ignore the address of existing ones."""
    if not support(spec.cloud).creates_cluster:
        return
    created = {
        ("storage", "bucket_url"): (spec.storage.bucket_url, "its own bucket"),
        ("storage", "secret"): (spec.storage.secret, "identities that open its bucket"),
        ("storage", "port"): (spec.storage.port != STORE_PORT, "its own bucket, at port 443"),
        ("kubernetes", "context"): (spec.kubernetes.context, "the cluster"),
        ("kubernetes", "kubeconfig"): (spec.kubernetes.kubeconfig, "the cluster"),
    }
    for where, (value, made) in created.items():
        if value:
            what = f"is for cloud: local only; on {spec.cloud} the platform creates {made}"
            yield Finding(where, what, "leave it out", (CLOUD,))
