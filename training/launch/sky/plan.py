"""Where a recipe could run, what it would cost there, and why not elsewhere: every pool of every platform,
best first. Pure.

Used by `trainfleet plan` and to order what SkyPilot tries. A pool's price is a node's: nodes of an autoscaled
pool are paid whole,
however few of their GPUs are used. Easy to get wrong: cheapest by the hour is not cheapest by the sample, so
pools are
compared by what a sample costs; and a price that is not known is no price of zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput
from trainfleet.training.launch.sky.config import context_name
from trainfleet.training.launch.sky.resources import BF16_FLOPS, FP32_SHARE, GIB, USABLE, Needs, needs_of
from trainfleet.training.recipe.schema import Recipe

MFU = 0.35
"""Share of the peak that a training is assumed to reach where none was measured."""
MFU_APART = 0.12
"""The same for one spread over several nodes that have plain Ethernet between them."""


@dataclass(frozen=True)
class Speed:
    """What throughput is worked out from.

    Attributes:
        mfu: share of the GPUs' peak.
        apart: the same over several nodes without a fabric between them.
        samples_per_worker: measured samples per second of one worker, which holds for the kind of worker it
        was measured on.
        source: in words, for the reader.
    """

    mfu: float | None = MFU
    apart: float | None = MFU_APART
    samples_per_worker: float | None = None
    source: str = (
        f"assumed: {MFU:.0%} of the GPUs' bf16 peak, {MFU_APART:.0%} over several nodes without a fabric"
    )


STORES = ("s3", "gs", "az")
"""Kinds of storage that want keys or an identity."""
CLOSED = "its pods' identity opens "


@dataclass(frozen=True)
class Candidate:
    """A pool of a platform (or its plain nodes) as a place for a recipe; refused where `refusals` says why."""

    platform: str
    context: str
    pool: str
    """Empty for a recipe without GPUs, which runs wherever there is room."""
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
        """A million samples: what candidates are compared by."""
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
class Wishes:
    """What the user says beside recipe and platforms.

    Attributes:
        nodes: nodes for a recipe without GPUs, whose workers may share one.
        spot: whether spot pools may be used.
        prices: USD per node and hour by `PLATFORM/POOL`, over the platform's own.
        parameters: the model's size where the recipe does not say it.
        gpus: only pools with one of these.
        pool: only pools of this name.
        storage: where the run is kept, if its pods have nothing but their cloud's identity to open it with.
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
    """All candidates: those that can run, in the order in which they are tried, then those refused."""

    recipe: str
    speed: Speed
    candidates: tuple[Candidate, ...]

    @property
    def possible(self) -> tuple[Candidate, ...]:
        return tuple(each for each in self.candidates if not each.refusals)

    @property
    def refused(self) -> tuple[Candidate, ...]:
        return tuple(each for each in self.candidates if each.refusals)

    def as_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "throughput": self.speed.source,
            "candidates": [each.as_json() for each in self.possible],
            "refused": [each.as_json() for each in self.refused],
        }


def make_plan(
    recipe: Recipe,
    platforms: Iterable[tuple[str, PlatformOutputs]],
    wishes: Wishes | None = None,
    speed: Speed | None = None,
) -> Plan:
    """Look at every pool of every platform, each by the name that the user knows the platform by.

    Spot comes before on-demand at the same price per sample and, being cheaper, mostly before everything;
    where prices are not
    known at all (machines of one's own) the order is that of the platforms and their pools.
    """
    wishes = wishes or Wishes()
    asked = _Asked(recipe, needs_of(recipe, wishes.parameters), wishes, speed or Speed())
    found: list[Candidate] = []
    for name, outputs in platforms:
        if recipe.scaling.use_gpu:
            here = [_on_pool(name, outputs, pool, asked) for pool in outputs.pools] or [
                _no_pools(name, outputs)
            ]
        else:
            here = [_anywhere(name, outputs, asked)]
        found += [replace(each, refusals=(*each.refusals, *closed(outputs, wishes.storage))) for each in here]
    if any(each.usd_per_hour is not None and not each.refusals for each in found):
        fix = "its price is not known, so it cannot be compared: --price {}=USD"
        found = [
            replace(each, refusals=(fix.format(f"{each.platform}/{each.pool}"),))
            if each.usd_per_hour is None and not each.refusals
            else each
            for each in found
        ]
    best = sorted((each for each in found if not each.refusals), key=_rank)
    return Plan(recipe.name, asked.speed, (*best, *(each for each in found if each.refusals)))


@dataclass(frozen=True)
class _Asked:
    """What each pool is held against."""

    recipe: Recipe
    needs: Needs
    wishes: Wishes
    speed: Speed


def shape(workers: int, per_node: int) -> tuple[int, int]:
    """Nodes, and workers on each: as few nodes as can share the workers evenly, for every pod of a SkyPilot
    cluster is alike.
    """
    nodes = next(
        count
        for count in range(1, workers + 1)
        if workers % count == 0 and workers // count <= max(1, per_node)
    )
    return nodes, workers // nodes


def closed(outputs: PlatformOutputs, storage: str | None) -> list[str]:
    """Why a platform's pods cannot open the run's storage, where nothing but their identity lets them in:
    that opens the platform's own kind.
    """
    own, asked = outputs.bucket_url.partition("://")[0], (storage or "").partition("://")[0]
    if own == asked or own not in STORES or asked not in STORES:
        return []
    return [
        f"{CLOSED}{own}:// and not {storage}: --from-secret NAME or --secret VARIABLE with keys, or another --storage"
    ]


def _rank(candidate: Candidate) -> tuple[float, bool, float]:
    by_hour = candidate.usd_per_hour if candidate.usd_per_hour is not None else 0.0
    cost = candidate.usd_per_million
    return (cost if cost is not None else by_hour, not candidate.spot, by_hour)


def _on_pool(name: str, outputs: PlatformOutputs, pool: PoolOutput, asked: _Asked) -> Candidate:
    needs, wishes = asked.needs, asked.wishes
    nodes, gpus = shape(asked.recipe.scaling.workers, pool.per_node)
    price = (wishes.prices or {}).get(f"{name}/{pool.name}", pool.usd_per_hour)
    rate, reasons = _rate(pool, nodes, asked)
    reasons += _refusals(pool, asked, nodes)
    hours = needs.samples / rate / 3600 if needs.samples and rate else None
    total = None if price is None else price * nodes
    context = context_name(outputs)
    return Candidate(
        name, context, pool.name, pool.accelerator, nodes, gpus, pool.spot, total, rate, hours, tuple(reasons)
    )


def _refusals(pool: PoolOutput, asked: _Asked, nodes: int) -> list[str]:
    """Why a pool cannot run the recipe."""
    recipe, wishes = asked.recipe, asked.wishes
    found = []
    if wishes.gpus and pool.accelerator not in wishes.gpus:
        found.append(f"{pool.accelerator} was not asked for: --gpu {', '.join(wishes.gpus)}")
    if wishes.pool is not None and pool.name != wishes.pool:
        found.append(f"another pool was asked for: --pool {wishes.pool}")
    if pool.spot and not wishes.spot:
        found.append("spot was refused: --no-spot")
    if pool.kind != "nodes":
        found.append(
            f"it is a pool of kind {pool.kind}, whose nodes run their own recovery; use --on kuberay"
        )
    if nodes > pool.max_nodes:
        have = pool.max_nodes * pool.per_node
        found.append(
            f"too few GPUs: {recipe.scaling.workers} workers need {nodes} nodes, the pool has at most {pool.max_nodes} ({have} GPUs)"
        )
    need = asked.needs.gpu_bytes(recipe, recipe.scaling.workers)
    if need is not None and pool.gpu_memory_gib and need > USABLE * pool.gpu_memory_gib * GIB:
        fix = ", or strategy=fsdp" if recipe.strategy == "ddp" and recipe.scaling.workers > 1 else ""
        what = f"its {pool.accelerator} has {pool.gpu_memory_gib:g} GiB, under {recipe.strategy} each worker needs at least {need / GIB:.1f} GiB"
        found.append(f"memory too small: {what}{fix}")
    return found


def _rate(pool: PoolOutput, nodes: int, asked: _Asked) -> tuple[float | None, list[str]]:
    """Samples per second of all workers on this GPU, and why there is none."""
    recipe, needs, speed = asked.recipe, asked.needs, asked.speed
    if speed.samples_per_worker is not None:
        return speed.samples_per_worker * recipe.scaling.workers, []
    peak = BF16_FLOPS.get(pool.accelerator)
    mfu = speed.apart if nodes > 1 and pool.rdma == "none" else speed.mfu
    if peak is None and recipe.precision == "bf16" and pool.accelerator == "T4":
        return None, ["a T4 has no bf16: precision=fp32, or another GPU"]
    if peak is None or needs.flops_per_sample is None or mfu is None:
        return None, []
    share = 1.0 if recipe.precision == "bf16" else FP32_SHARE
    return peak * share * mfu * recipe.scaling.workers / needs.flops_per_sample, []


def _anywhere(name: str, outputs: PlatformOutputs, asked: _Asked) -> Candidate:
    """A recipe without GPUs: on whatever nodes have room."""
    recipe, needs, wishes, speed = asked.recipe, asked.needs, asked.wishes, asked.speed
    refusals = []
    if recipe.scaling.workers % wishes.nodes:
        refusals.append(
            f"{recipe.scaling.workers} workers cannot be shared by {wishes.nodes} nodes: --nodes with a divisor"
        )
    rate = speed.samples_per_worker * recipe.scaling.workers if speed.samples_per_worker else None
    hours = needs.samples / rate / 3600 if needs.samples and rate else None
    price = (wishes.prices or {}).get(name)
    total = None if price is None else price * wishes.nodes
    return Candidate(
        name, context_name(outputs), "", "", wishes.nodes, 0, False, total, rate, hours, tuple(refusals)
    )


def _no_pools(name: str, outputs: PlatformOutputs) -> Candidate:
    return Candidate(
        name, context_name(outputs), "", "", 0, 0, False, None, refusals=("the platform has no GPU pool",)
    )


def measured(rows: Sequence[Mapping[str, Any]], workers: int, run: str) -> Speed:
    """The speed of a run that was measured: its MFU where it had GPUs, else its samples per second and
    worker.

    The middle of the later half of its rows: the first ones have the warm-up in them.
    """
    later = rows[len(rows) // 2 :]
    shares = sorted(row["mfu"] for row in later if row.get("mfu") is not None)
    if shares:
        mfu = shares[len(shares) // 2]
        return Speed(mfu, mfu, None, f"measured: {mfu:.1%} of the GPUs' peak, as {run} reached")
    rates = sorted(row["samples_per_second"] for row in later if row.get("samples_per_second"))
    if not rates:
        return Speed()
    rate = rates[len(rates) // 2] / max(1, workers)
    return Speed(
        None,
        None,
        rate,
        f"measured: {rate:.3g} samples per second and worker, as {run} reached on its own machine",
    )
