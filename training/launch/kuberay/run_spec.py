"""What the manifests of a run need to know: the cluster as the contract or the options say it, the pool, and
how workers fill pods.

Used by `trainfleet.training.launch.kuberay`. Pure but for the environment that is read once (`forwarded`).
Easy to get wrong: a store that answers
this machine need not answer a pod, and a key in this machine's environment must never travel in a manifest.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput
from trainfleet.suggestions import did_you_mean
from trainfleet.training.launch.external_cluster import bare_platform
from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.stores.urls import is_remote

RAY_VERSION = "2.60.0"
UNKNOWN = {"cloud": "", "ray_version": RAY_VERSION}
"""What a cluster that no stack describes is, beside its namespace and image."""
ENDPOINTS = (
    "TRAINFLEET_S3_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "STORAGE_EMULATOR_HOST",
    "TRAINFLEET_AZURE_ENDPOINT",
)
FORWARDED = (
    *ENDPOINTS,
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "WANDB_MODE",
    "HF_HUB_OFFLINE",
)
"""Variables that say where stores are. None of them is a key: keys come to a pod by a Secret or by its
identity.
"""
CA_FILE = "AWS_CA_BUNDLE"
"""Names the authority of a private store; a machine-wide bundle (SSL_CERT_FILE) is no business of pods."""
LARGEST_CA = 500_000
"""Bytes; a ConfigMap holds a megabyte."""
LONGEST_NAME = 47
"""Of a RayJob: KubeRay adds to it, and refuses more (MaxRayJobNameLength)."""


@dataclass(frozen=True)
class Site:
    """A run on a cluster, decided."""

    recipe: Recipe
    outputs: PlatformOutputs
    context: str | None
    """A context of the user's kubeconfig; None: the contract's own kubeconfig."""
    namespace: str
    image: str
    pool: PoolOutput | None
    per_pod: int
    """Workers in a pod."""
    pods: int
    fewest_pods: int
    job: str
    launch: str
    cluster: str | None
    secrets: tuple[str, ...]
    env: dict[str, str]
    ca: str
    """Certificates (PEM) of an authority that a private store is signed by, or empty."""
    within_s: float
    allow_changes: tuple[str, ...]

    @property
    def elastic(self) -> bool:
        """Whether the run goes on with fewer pods."""
        return self.fewest_pods < self.pods

    @property
    def autoscaled(self) -> bool:
        """Whether Ray asks for pods as it needs them. Kueue admits a run as a whole and refuses one that
        grows by itself.
        """
        return self.elastic and not self.outputs.queue


def job_name(run: str) -> str:
    """The RayJob of a run: one name for one run, so that a second launch meets the first."""
    name = f"tf-{run}"
    return (
        name
        if len(name) <= LONGEST_NAME
        else f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"
    )


def decide(recipe: Recipe, target: Target, env: Mapping[str, str]) -> Site:
    """The site of a launch.

    Raises:
        InputError: all that is missing or does not fit, at once.
    """
    request = target.request
    problems: list[Problem] = []
    if len(target.places) > 1:
        problems.append(
            Problem(
                "--stack",
                "a run on KubeRay is on one cluster",
                "name one; `--on sky` chooses between several",
            )
        )
    if not target.places and request.context is None:
        problems.append(
            Problem(
                "--stack",
                "which cluster?",
                "--stack OUTPUTS.json, or --context NAME --namespace NS --image REF",
            )
        )
    outputs = (
        target.place.outputs
        if target.place
        else bare_platform("", request.namespace or "", request.image or "", "").model_copy(update=UNKNOWN)
    )
    image = request.image or outputs.image
    namespace = request.namespace or outputs.namespace
    if not target.places and request.context is not None:
        for option, said in (("--namespace", namespace), ("--image", image)):
            if not said:
                problems.append(
                    Problem(option, "is missing: no stack says it for this context", f"add {option}")
                )
    problems += unreachable(recipe.storage, env)
    pool, why = choose_pool(recipe, outputs, request.pool)
    problems += why
    per_pod = min(pool.per_node, recipe.scaling.workers) if pool is not None and recipe.scaling.use_gpu else 1
    pods = -(-recipe.scaling.workers // per_pod)
    if pool is not None and pods > pool.max_nodes > 0:
        what = f"{recipe.scaling.workers} workers need {pods} nodes of pool {pool.name}, which grows to {pool.max_nodes}"
        problems.append(
            Problem("scaling.workers", what, f"at most {pool.max_nodes * per_pod}, or another pool")
        )
    ca, bad = authority(env)
    problems += bad
    if problems:
        raise InputError("this cannot run on the cluster as asked", problems)
    fewest = -(-(recipe.scaling.min_workers or recipe.scaling.workers) // per_pod)
    return Site(
        recipe=recipe,
        outputs=outputs,
        context=request.context,
        namespace=namespace,
        image=image,
        pool=pool,
        per_pod=per_pod,
        pods=pods,
        fewest_pods=fewest,
        job=job_name(recipe.name),
        launch=str(request.options.get("launch") or secrets.token_hex(8)),
        cluster=request.cluster,
        secrets=tuple(request.options.get("from_secrets", ())),
        env={key: env[key] for key in FORWARDED if env.get(key)},
        ca=ca,
        within_s=request.within_s,
        allow_changes=request.allow_changes,
    )


def choose_pool(
    recipe: Recipe, outputs: PlatformOutputs, wanted: str | None
) -> tuple[PoolOutput | None, list[Problem]]:
    """The pool that trains: the one named, else for GPUs the cheapest that is large enough; None for CPUs on
    a cluster's plain nodes.
    """
    named = {pool.name: pool for pool in outputs.pools}
    if wanted is not None:
        if wanted not in named:
            return None, [
                Problem(
                    "--pool",
                    f"this platform has no pool `{wanted}`",
                    did_you_mean(wanted, named) if named else "it has none at all",
                )
            ]
        return named[wanted], []
    if not recipe.scaling.use_gpu or not outputs.name:
        return None, []
    if not named:
        return None, [
            Problem(
                "scaling.use_gpu",
                f"no pool of {outputs.name} has GPUs",
                "scaling.use_gpu=false, or a platform with a GPU pool",
            )
        ]
    fitting = [
        pool
        for pool in outputs.pools
        if -(-recipe.scaling.workers // min(pool.per_node, recipe.scaling.workers)) <= pool.max_nodes
    ]
    if not fitting:
        most = max(pool.per_node * pool.max_nodes for pool in outputs.pools)
        what = f"no pool of {outputs.name} can have {recipe.scaling.workers} GPUs; the largest has {most}"
        return None, [Problem("scaling.workers", what, f"at most {most}")]
    return min(fitting, key=lambda pool: (cost(recipe, pool), pool.name)), []


def cost(recipe: Recipe, pool: PoolOutput) -> float:
    """Dollars per hour of the nodes that the run takes; without a price it comes last."""
    nodes = -(-recipe.scaling.workers // min(pool.per_node, recipe.scaling.workers))
    return float("inf") if pool.usd_per_hour is None else nodes * pool.usd_per_hour


def unreachable(storage: str, env: Mapping[str, str], who: str = "pods") -> list[Problem]:
    """Why `who` runs elsewhere could not read and write this storage."""
    fix = "--storage s3://BUCKET/runs (or gs://, az://)"
    if not is_remote(storage):
        return [Problem("storage", f"`{storage}` is a folder of this machine, which {who} do not have", fix)]
    found = []
    for name in ENDPOINTS:
        host = (
            urlsplit(env[name] if "//" in env[name] else f"//{env[name]}").hostname if env.get(name) else None
        )
        if host and _loopback(host):
            fix = f"an address that {who} reach too, such as this machine's in their network"
            found.append(Problem(name, f"{env[name]} is this machine itself; elsewhere it is another", fix))
    return found


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def trusting(env: Mapping[str, str], file: str) -> dict[str, str]:
    """What makes a process trust the store's authority in `file`. The clients of GCS and Azure know one
    variable alone, which is everybody's.
    """
    everybody = any(
        env.get(name, "").startswith("https://")
        for name in ("STORAGE_EMULATOR_HOST", "TRAINFLEET_AZURE_ENDPOINT")
    )
    return {CA_FILE: file, **({"SSL_CERT_FILE": file} if everybody else {})}


def authority(env: Mapping[str, str]) -> tuple[str, list[Problem]]:
    """The certificates that this machine trusts for its stores: public, so they may travel; anything else in
    the file may not.
    """
    if not env.get(CA_FILE):
        return "", []
    try:
        text = Path(env[CA_FILE]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return "", [Problem(CA_FILE, f"{env[CA_FILE]} cannot be read: {error}")]
    blocks = re.findall(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", text, re.DOTALL)
    if sum(map(len, blocks)) > LARGEST_CA:
        fix = "a file with the one authority that the store needs"
        return "", [Problem(CA_FILE, f"{env[CA_FILE]} is too large for a cluster's configuration", fix)]
    return "\n".join([*blocks, ""]) if blocks else "", []
