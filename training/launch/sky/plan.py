"""Where a recipe could run, what it would cost there, and why not elsewhere: every pool, cheapest first.
Pure.

Pools are compared by the cost of a sample, not of an hour. A pool's price is that of whole nodes, however few
of their GPUs are used. An unknown price is not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput
from trainfleet.suggestions import did_you_mean
from trainfleet.training.launch.remote.fabric import unusable_fabric
from trainfleet.training.launch.remote.node_size import too_large
from trainfleet.training.launch.remote.run_price import unpriced
from trainfleet.training.launch.sky.config import context_name
from trainfleet.training.launch.sky.pod_size import pod_size
from trainfleet.training.launch.sky.resources import BF16_FLOPS, FP32_SHARE, GIB, USABLE, Needs, needs_of
from trainfleet.training.recipe.schema import Recipe

MFU = 0.35
"""Assumed share of the GPUs' peak where none was measured."""
MFU_ETHERNET = 0.12
"""The same over several nodes with plain Ethernet between them."""


@dataclass(frozen=True)
class Throughput:
    """What throughput is estimated from.

    Attributes:
        mfu: share of the GPUs' peak.
        ethernet: the same over several nodes without a fabric between them.
        samples_per_worker: measured samples per second of one worker, valid for the same hardware.
        source: in words, for people.
    """

    mfu: float | None = MFU
    ethernet: float | None = MFU_ETHERNET
    samples_per_worker: float | None = None
    source: str = (
        f"assumed: {MFU:.0%} of the GPUs' bf16 peak, {MFU_ETHERNET:.0%} over several nodes without a fabric"
    )


STORES = ("s3", "gs", "az")
"""Kinds of storage that need keys or an identity."""
CLOSED = "its pods' identity opens "


@dataclass(frozen=True)
class Candidate:
    """A pool of a platform (or its plain nodes) for a recipe; rejected if `refusals` is not empty."""

    platform: str
    context: str
    pool: str
    """Empty for a recipe without GPUs, which runs on any node."""
    accelerator: str
    nodes: int
    gpus_per_node: int
    spot: bool
    usd_per_hour: float | None
    """Of all nodes together."""
    samples_per_second: float | None = None
    hours: float | None = None
    refusals: tuple[str, ...] = ()

    @property
    def usd(self) -> float | None:
        """The whole run."""
        return None if self.hours is None or self.usd_per_hour is None else self.hours * self.usd_per_hour

    @property
    def usd_per_million(self) -> float | None:
        """For a million samples: the measure by which candidates are compared."""
        if self.usd_per_hour is None or not self.samples_per_second:
            return None
        return self.usd_per_hour / 3600 / self.samples_per_second * 1e6

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "refusals": list(self.refusals),
            "usd": self.usd,
            "usd_per_million_samples": self.usd_per_million,
        }


@dataclass(frozen=True)
class PlanOptions:
    """What decides where a recipe can run, other than recipe and platforms.

    Attributes:
        nodes: nodes for a recipe without GPUs, whose workers may share one.
        spot: whether spot pools may be used.
        prices: USD per node and hour by `PLATFORM/POOL`; override the platform's own.
        parameters: the model's size, where the recipe does not define it.
        gpus: only pools with one of these.
        pool: only pools of this name.
        storage: where the run is stored, if its pods have only their cloud identity to open it.
    """

    nodes: int = 1
    spot: bool = True
    prices: Mapping[str, float] | None = None
    parameters: float | None = None
    gpus: tuple[str, ...] = ()
    pool: str | None = None
    storage: str | None = None


@dataclass(frozen=True)
class Plan:
    """All candidates: those that can run, in the order in which they are tried, then the rejected ones."""

    recipe: str
    throughput: Throughput
    candidates: tuple[Candidate, ...]

    @property
    def possible(self) -> tuple[Candidate, ...]:
        """Those that can run."""
        return tuple(each for each in self.candidates if not each.refusals)

    @property
    def refused(self) -> tuple[Candidate, ...]:
        """Those that cannot."""
        return tuple(each for each in self.candidates if each.refusals)

    def as_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "throughput": self.throughput.source,
            "candidates": [each.as_json() for each in self.possible],
            "refused": [each.as_json() for each in self.refused],
        }


def make_plan(
    recipe: Recipe,
    platforms: Iterable[tuple[str, PlatformOutputs]],
    options: PlanOptions | None = None,
    throughput: Throughput | None = None,
) -> Plan:
    """Evaluate every pool of every platform, given by the user's name for it.

    Spot comes before on-demand at the same price per sample. Where no price is known, the order is that of
    the platforms and their pools.

    Raises:
        InputError: a price is given for a pool that no platform has.
    """
    options, platforms = options or PlanOptions(), list(platforms)
    _require_pools(options.prices or {}, platforms)
    query = _Query(recipe, needs_of(recipe, options.parameters), options, throughput or Throughput())
    found: list[Candidate] = []
    for name, outputs in platforms:
        if recipe.scaling.use_gpu:
            here = [_on_pool(name, outputs, pool, query) for pool in outputs.pools] or [
                _no_pools(name, outputs)
            ]
        else:
            here = [_on_plain_nodes(name, outputs, query)]
        found += [
            replace(
                each,
                refusals=(
                    *each.refusals,
                    *storage_refusals(outputs, options.storage),
                    *map(str, unpriced(recipe, each.usd_per_hour, f"{name}/{each.pool}".rstrip("/"))),
                ),
            )
            for each in here
        ]
    if any(each.usd_per_hour is not None and not each.refusals for each in found):
        fix = "its price is not known, so it cannot be compared: --price {}=USD"
        found = [
            replace(each, refusals=(fix.format(f"{each.platform}/{each.pool}"),))
            if each.usd_per_hour is None and not each.refusals
            else each
            for each in found
        ]
    best = sorted((each for each in found if not each.refusals), key=_rank)
    return Plan(recipe.name, query.throughput, (*best, *(each for each in found if each.refusals)))


@dataclass(frozen=True)
class _Query:
    """What each pool is compared with."""

    recipe: Recipe
    needs: Needs
    options: PlanOptions
    throughput: Throughput


def shape(workers: int, per_node: int) -> tuple[int, int]:
    """Nodes, and workers on each: the fewest nodes that share the workers evenly.

    All pods of a SkyPilot cluster are equal.
    """
    nodes = next(
        count
        for count in range(1, workers + 1)
        if workers % count == 0 and workers // count <= max(1, per_node)
    )
    return nodes, workers // nodes


def storage_refusals(outputs: PlatformOutputs, storage: str | None) -> list[str]:
    """Why a platform's pods cannot open the run's storage with their identity alone.

    The identity opens only the platform's own kind of storage.
    """
    own, kind = outputs.bucket_url.partition("://")[0], (storage or "").partition("://")[0]
    if own == kind or own not in STORES or kind not in STORES:
        return []
    fix = "--from-secret NAME or --secret VARIABLE with keys, or another --storage"
    return [f"{CLOSED}{own}:// and not {storage}: {fix}"]


def _require_pools(prices: Mapping[str, float], platforms: Sequence[tuple[str, PlatformOutputs]]) -> None:
    known = [f"{name}/{pool.name}" for name, outputs in platforms for pool in outputs.pools]
    problems = [
        Problem(f"--price {each}", "is not a pool of these platforms", did_you_mean(each, known))
        for each in prices
        if each not in known
    ]
    if problems:
        raise InputError("a price without a pool", problems)


def _rank(candidate: Candidate) -> tuple[float, bool, float]:
    by_hour = candidate.usd_per_hour if candidate.usd_per_hour is not None else 0.0
    cost = candidate.usd_per_million
    return (cost if cost is not None else by_hour, not candidate.spot, by_hour)


def _on_pool(name: str, outputs: PlatformOutputs, pool: PoolOutput, query: _Query) -> Candidate:
    needs, options = query.needs, query.options
    nodes, gpus = shape(query.recipe.scaling.workers, pool.per_node)
    price = (options.prices or {}).get(f"{name}/{pool.name}", pool.usd_per_hour)
    rate, reasons = _rate(pool, nodes, query)
    reasons += _refusals(pool, query, nodes)
    if why := unusable_fabric(pool, gpus, nodes):
        reasons.append(why)
    hours = needs.samples / rate / 3600 if needs.samples and rate else None
    total = None if price is None else price * nodes
    context = context_name(outputs)
    return Candidate(
        name, context, pool.name, pool.accelerator, nodes, gpus, pool.spot, total, rate, hours, tuple(reasons)
    )


def _refusals(pool: PoolOutput, query: _Query, nodes: int) -> list[str]:
    """Why a pool cannot run the recipe."""
    recipe, options = query.recipe, query.options
    found = []
    if options.gpus and pool.accelerator not in options.gpus:
        found.append(f"{pool.accelerator} was not requested: --gpu {', '.join(options.gpus)}")
    if options.pool is not None and pool.name != options.pool:
        found.append(f"another pool was requested: --pool {options.pool}")
    if pool.spot and not options.spot:
        found.append("spot is excluded: --no-spot")
    if pool.kind != "nodes":
        found.append(
            f"it is a pool of kind {pool.kind}, whose nodes run their own recovery; use --on kuberay"
        )
    if nodes > pool.max_nodes:
        have = pool.max_nodes * pool.per_node
        need_nodes = f"{recipe.scaling.workers} workers need {nodes} nodes"
        found.append(f"too few GPUs: {need_nodes}, the pool has at most {pool.max_nodes} ({have} GPUs)")
    oversized = too_large(pool, pod_size(recipe, nodes), recipe.scaling.cpus_per_worker)
    found += [f"{each.what}: {each.where}, {each.fix}" for each in oversized]
    need = query.needs.gpu_bytes(recipe, recipe.scaling.workers)
    if need is not None and pool.gpu_memory_gib and need > USABLE * pool.gpu_memory_gib * GIB:
        fix = ", or strategy=fsdp" if recipe.strategy == "ddp" and recipe.scaling.workers > 1 else ""
        has = f"its {pool.accelerator} has {pool.gpu_memory_gib:g} GiB"
        what = f"{has}, under {recipe.strategy} each worker needs at least {need / GIB:.1f} GiB"
        found.append(f"memory too small: {what}{fix}")
    return found


def _rate(pool: PoolOutput, nodes: int, query: _Query) -> tuple[float | None, list[str]]:
    """Samples per second of all workers on this GPU, or why the GPU cannot run the recipe."""
    recipe, needs, throughput = query.recipe, query.needs, query.throughput
    if throughput.samples_per_worker is not None:
        return throughput.samples_per_worker * recipe.scaling.workers, []
    peak = BF16_FLOPS.get(pool.accelerator)
    mfu = throughput.ethernet if nodes > 1 and pool.rdma == "none" else throughput.mfu
    if peak is None and recipe.precision == "bf16" and pool.accelerator == "T4":
        return None, ["a T4 has no bf16: precision=fp32, or another GPU"]
    if peak is None or needs.flops_per_sample is None or mfu is None:
        return None, []
    share = 1.0 if recipe.precision == "bf16" else FP32_SHARE
    return peak * share * mfu * recipe.scaling.workers / needs.flops_per_sample, []


def _on_plain_nodes(name: str, outputs: PlatformOutputs, query: _Query) -> Candidate:
    """A recipe without GPUs runs on any node."""
    recipe, needs, options, throughput = query.recipe, query.needs, query.options, query.throughput
    refusals = []
    if recipe.scaling.workers % options.nodes:
        refusals.append(
            f"{recipe.scaling.workers} workers do not divide by {options.nodes} nodes: --nodes with a divisor"
        )
    rate = throughput.samples_per_worker * recipe.scaling.workers if throughput.samples_per_worker else None
    hours = needs.samples / rate / 3600 if needs.samples and rate else None
    price = (options.prices or {}).get(name)
    total = None if price is None else price * options.nodes
    return Candidate(
        name, context_name(outputs), "", "", options.nodes, 0, False, total, rate, hours, tuple(refusals)
    )


def _no_pools(name: str, outputs: PlatformOutputs) -> Candidate:
    return Candidate(
        name, context_name(outputs), "", "", 0, 0, False, None, refusals=("the platform has no GPU pool",)
    )


def measured(rows: Sequence[Mapping[str, Any]], workers: int, run: str) -> Throughput:
    """The throughput of a measured run: its MFU if it had GPUs, else samples per second and worker.

    The median of the second half of its rows; the first half includes the warm-up.
    """
    later = rows[len(rows) // 2 :]
    shares = sorted(row["mfu"] for row in later if row.get("mfu") is not None)
    if shares:
        mfu = shares[len(shares) // 2]
        return Throughput(mfu, mfu, None, f"measured: {mfu:.1%} of the GPUs' peak, as {run} reached")
    rates = sorted(row["samples_per_second"] for row in later if row.get("samples_per_second"))
    if not rates:
        return Throughput()
    rate = rates[len(rates) // 2] / max(1, workers)
    return Throughput(
        None,
        None,
        rate,
        f"measured: {rate:.3g} samples per second and worker, as {run} reached on its own machine",
    )
