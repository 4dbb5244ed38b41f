"""How the cost of a step, a start and a checkpoint grows with the number of ranks, up to 1,024.

    python -m benchmarks.scale [--recipe lm-124m] [--smoke] [--json]

Runs as rank 0 of a process group whose collectives do nothing (torch's `fake` backend), so no other process
is needed: it counts collectives, bytes and objects, which do not depend on a network, and gives no times of
communication. The plans of the other ranks are made from shards without data.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import command
from trainfleet.training.checkpoint import Checkpoints
from trainfleet.training.checkpoint.damage import read_manifest
from trainfleet.training.checkpoint.files import METADATA, PLAIN, Share, commit, read_metadata, read_plain
from trainfleet.training.checkpoint.rank_values import read_rank_values
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime.collectives import Ranks
from trainfleet.training.stores import FileDigest, Store, open_store
from trainfleet.training.trainer.context import RunContext, default_cache
from trainfleet.training.trainer.optimizer import make_optimizer
from trainfleet.training.trainer.state import rng_state
from trainfleet.training.trainer.step import Stepper
from trainfleet.training.trainer.strategies import make_strategy
from trainfleet.training.workloads import Workload, make_workload

RANKS = (8, 64, 256, 1024)
SMOKE_RANKS = (4, 16)
LOCAL = 8
"""Ranks of a machine."""
STRATEGIES = {
    "ddp": ("strategy=ddp",),
    "fsdp": ("strategy=fsdp", "sharding.meta_init=true"),
    "hsdp": ("strategy=hsdp", "sharding.meta_init=true"),
}


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch is partly typed
    """Counts collectives, and the bytes that each one gives to this rank."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch is partly typed
        self.calls: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional") and "wait_tensor" not in str(func):
            self.calls[str(func.overloadpacket).partition(".")[2].strip("_")] += 1
            self.bytes += sum(each.nbytes for each in _tensors(args[0]))
        return found


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


@contextmanager
def fake_group(rank: int, world_size: int) -> Iterator[None]:
    """This process as one of `world_size` ranks, whose collectives leave their outputs as they are."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def step_costs(recipe: Recipe, workload: Workload, world_size: int) -> tuple[dict[str, float], Any]:
    """What rank 0 does in a start and in a step, and the state that it saves."""
    context = RunContext(Path("unused"), 0, world_size, 0, min(LOCAL, world_size))
    began = time.perf_counter()
    start, step = Collectives(), Collectives()
    with start:
        strategy = make_strategy(recipe, workload.build_model, context)
        optimizer = make_optimizer(recipe.optimizer, strategy.module)
    built = time.perf_counter() - began
    stepper = Stepper(recipe, context, workload, strategy)
    if isinstance(strategy.parallel, DistributedDataParallel):
        # torch compares the hook's annotations with the classes, which are strings in this module.
        strategy.parallel.register_comm_hook(step, lambda counts, bucket: _count_bucket(counts, bucket))  # noqa: PLW0108
    stepper.compute_gradients(list(range(world_size)))  # DDP sizes its buckets after the first step
    with step:
        step.calls.clear()
        step.bytes = 0
        stepper.compute_gradients(list(range(world_size)))
    optimizer.step()
    state = strategy.state_dict(optimizer)
    held = list(_tensors([*state["model"].values(), *_values(state["optimizer"])]))
    return {
        "build s": built,
        "collectives of a start": sum(start.calls.values()),
        "collectives of a step": sum(step.calls.values()),
        "MiB received in a step": step.bytes / 2**20,
        "MiB kept": sum((each.to_local() if isinstance(each, DTensor) else each).nbytes for each in held)
        / 2**20,
    }, state


def _count_bucket(counts: Collectives, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Count the all-reduce of a bucket: DDP's own is in C++, which the `fake` backend cannot answer."""
    counts.calls["allreduce"] += 1
    counts.bytes += bucket.buffer().nbytes
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _values(nested: Any) -> list[Any]:
    if isinstance(nested, Mapping):
        return [leaf for each in nested.values() for leaf in _values(each)]
    return [nested]


def checkpoint_costs(state: Any, world_size: int) -> dict[str, float]:
    """What a save by this many ranks costs rank 0, which assigns the parts and writes their description."""
    planner = DefaultSavePlanner()
    with fake_group(0, world_size):
        planner.set_up_planner(state, is_coordinator=True)
        plans = [planner.create_local_plan()]
    flat = dict(planner.state_dict)
    meshes = {
        value.device_mesh: (value.device_mesh.mesh.shape, value.device_mesh.mesh_dim_names)
        for value in flat.values()
        if isinstance(value, DTensor)
    }
    for rank in range(1, world_size):
        with fake_group(rank, world_size):
            mine = {
                mesh: init_device_mesh("cpu", tuple(shape), mesh_dim_names=names)
                for mesh, (shape, names) in meshes.items()
            }
            plans.append(_plan_of(flat, mine))
    began = time.perf_counter()
    shares, metadata = planner.create_global_plan(plans)
    seconds = time.perf_counter() - began
    plain = [{"rng": rng_state(), "interval": {}} for _ in range(world_size)]  # equal parts are pickled once
    with tempfile.TemporaryDirectory(prefix="trainfleet-scale-") as folder:
        store = open_store(folder)
        commit(
            store,
            "step",
            [_share(rank, each) for rank, each in enumerate(shares)],
            metadata,
            plain={"shared": {}, "ranks": plain},
            note={},
        )
        read = [_read_to_resume(store, rank, world_size) for rank in range(2)]
        sizes = {path.rpartition("/")[2]: size for path, size in store.sizes().items()}
    return {
        "plan s": seconds,
        "parts of rank 0": len(shares[0].items),
        "KiB gathered by rank 0 for a plan": sum(len(pickle.dumps(each)) for each in plans) / 1024,
        "KiB of .metadata": sizes.pop(METADATA) / 1024,
        "KiB of plain.pt": sizes.pop(PLAIN) / 1024,
        "KiB of the marker": sum(sizes.values()) / 1024,
        "KiB read from the store by rank 0, to resume": read[0] / 1024,
        "by each other rank": read[1] / 1024,
        "by all ranks": (read[0] + (world_size - 1) * read[1]) / 1024,
        "objects": sum(bool(each.items) for each in shares) + 3,
    }


class _OneOfMany(Ranks):
    """Collectives of a rank whose process is alone: what rank 0 would send, it reads from `sent`."""

    sent: ClassVar[list[Any]] = []

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.group = rank, world_size, None
        self._received = iter([*self.sent])
        if rank == 0:
            self.sent.clear()

    def broadcast(self, value: Any) -> Any:
        if self.rank == 0:
            self.sent.append(value)
            return value
        return next(self._received)

    def scatter(self, values: list[Any] | None) -> Any:
        return self.broadcast(values)[self.rank]


def _read_to_resume(store: Store, rank: int, world_size: int) -> int:
    """Bytes of a checkpoint's descriptions and plain values that a rank reads, rank 0 first. The weights, and
    the files whose checksums it verifies, are not counted.
    """
    read, whole = store.read, 0

    def counted(path: str) -> bytes:
        nonlocal whole
        content = read(path)
        whole += len(content)
        return content

    ranks = _OneOfMany(rank, world_size)
    kept = SimpleNamespace(loop_ranks=ranks, read=lambda name: read_plain(store, name))
    with mock.patch.object(store, "read", counted):
        read_manifest(store, "step", ranks)
        read_metadata(store, "step", ranks)
        read_rank_values(cast(Checkpoints, kept), "step")
    return whole


def _plan_of(flat: Mapping[str, Any], meshes: Mapping[DeviceMesh, DeviceMesh]) -> SavePlan:
    """The plan of the rank that this process is now, for shards without data."""
    state: dict[str, Any] = {}
    for name, value in flat.items():
        if isinstance(value, DTensor):
            mesh = meshes[value.device_mesh]
            shape, _ = compute_local_shape_and_global_offset(value.shape, mesh, value.placements)
            local = torch.empty(shape, dtype=value.dtype, device="meta")
            state[name] = DTensor.from_local(
                local, mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride()
            )
        else:
            state[name] = value
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=False)
    return planner.create_local_plan()


def _share(rank: int, plan: SavePlan) -> Share:
    """What `write_share` returns, with a synthetic checksum."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    file = f"__{rank}_0.distcp"
    places = {item.index: _StorageInfo(file, 1 << 20, 1 << 20) for item in plan.items}
    return Share({file: FileDigest(1 << 30, "0" * 64)} if plan.items else {}, places)


def measure(recipe: str, ranks: tuple[int, ...], changes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Measure each strategy at each number of ranks and return the document of `--json`."""
    rows: dict[str, dict[str, Any]] = {}
    for strategy, overrides in STRATEGIES.items():
        chosen = load_recipe(recipe, [*changes, *overrides, f"batch.global_batch={max(ranks)}"])
        workload = make_workload(chosen, default_cache())
        for world_size in ranks:
            with fake_group(0, world_size):
                costs, state = step_costs(chosen, workload, world_size)
            rows[f"{strategy}, {world_size} ranks"] = costs | checkpoint_costs(state, world_size)
    return {**command.environment(["torch"]), "recipe": " ".join((recipe, *changes)), "rows": rows}


def show(document: dict[str, Any]) -> None:
    """Print the table of docs/scale.md: of the numbers of ranks, the second and the last."""
    command.show_environment(document)
    print(f"{document['recipe']}\n")
    ranks = list(dict.fromkeys(name.partition(", ")[2] for name in document["rows"]))
    shown = {ranks[min(1, len(ranks) - 1)], ranks[-1]}
    rows = {name: row for name, row in document["rows"].items() if name.partition(", ")[2] in shown}
    print("| | " + " | ".join(rows) + " |\n|---|" + "---|" * len(rows))
    for name in next(iter(rows.values())):
        print(f"| {name} | " + " | ".join(_shown(row[name]) for row in rows.values()) + " |")


def _shown(value: float) -> str:
    """A number with three digits, or all of a large one."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


ON_CPU = (
    *("scaling.use_gpu=false", "compile=false", "precision=fp32", "scaling.threads=1"),
    *("batch.micro_batch=1", "workload.data.tokens=bytes"),
)


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    if smoke:
        return measure(name or "lm-tiny", SMOKE_RANKS, ("batch.micro_batch=1",))
    return measure(name or "lm-124m", RANKS, ON_CPU)


def main() -> int:
    """Measure and print; `lm-124m` by default, in a smoke run `lm-tiny`."""
    return command.run(__doc__, "recipe", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
