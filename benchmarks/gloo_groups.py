"""Connections, memory and start-up of a run's gloo groups, as the number of ranks grows.

    python -m benchmarks.gloo_groups [--ranks 2,4,8,16] [--smoke] [--json]

Real ranks on one machine, forked from a process that has imported torch, make the groups that a run has: the
default one, two for checkpoints, and the one in which ranks wait for prepared data, which is closed. Then
they exchange what a run does: flags, a gather, a scatter and a broadcast in each group. Once with
connections at first use (TORCH_GLOO_LAZY_INIT=1, which Trainfleet sets), once with each rank connected to all
others at once. The figures for 1,024 ranks are of the formulas in `expected`, not measured.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import command
from trainfleet.errors import TrainfleetError

RANKS = (2, 4, 8, 16)
TIMEOUT_S = 240.0
FAR = 1024
GROUPS = 3
"""Those that stay open."""


def sockets() -> int:
    """Open sockets of this process (Linux)."""
    count = 0
    for handle in Path("/proc/self/fd").iterdir():
        try:
            count += str(handle.readlink()).startswith("socket:")
        except FileNotFoundError:  # that of the listing
            continue
    return count


def anonymous_kib() -> int:
    """Memory that this process has allocated (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def rank_main(rank: int, world_size: int, port: int, lazy: bool, queue: Any) -> None:
    """What a rank does, and what it counts: see `measure`."""
    import torch
    import torch.distributed as dist

    from trainfleet.training.runtime import process_group
    from trainfleet.training.runtime.collectives import Ranks, after_all

    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ |= {name: str(value) for name, value in ranks.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    os.environ.pop("TORCH_GLOO_LAZY_INIT", None)
    if not lazy:
        os.environ["TORCH_GLOO_LAZY_INIT"] = "0"
    torch.set_num_threads(1)
    first, allocated, began = sockets(), anonymous_kib(), time.perf_counter()
    process_group.init_from_env(use_gpu=False, timeout_s=TIMEOUT_S)
    after_all(lambda: None)
    groups = [Ranks(), Ranks()]
    for group in groups:
        group.any(False)
        group.gather(rank)
        group.scatter(list(range(world_size)) if rank == 0 else None)
        group.broadcast(rank)
    dist.all_reduce(torch.zeros(1))
    seconds = time.perf_counter() - began
    queue.put((rank, sockets() - first, anonymous_kib() - allocated, seconds))
    dist.barrier()  # the connections of the others are still counted
    for group in groups:
        group.close()
    process_group.shutdown()


def count(world_size: int, lazy: bool) -> dict[str, Any]:
    """Sockets of the ranks, KiB that they have allocated, and seconds until the last one is connected.

    Raises:
        TrainfleetError: the ranks did not finish in time.
    """
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    fork = multiprocessing.get_context("forkserver")
    fork.set_forkserver_preload(["torch.distributed", "trainfleet.training.runtime.collectives"])
    queue: Any = fork.Queue()
    processes = [
        fork.Process(target=rank_main, args=(rank, world_size, store.port, lazy, queue), daemon=True)
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    try:
        found = sorted(queue.get(timeout=TIMEOUT_S) for _ in processes)
        for process in processes:
            process.join(TIMEOUT_S)
    except Exception as error:
        raise TrainfleetError(f"{world_size} ranks did not finish within {TIMEOUT_S:g} s") from error
    finally:
        for process in processes:
            process.kill()
    others = [row[1] for row in found[1:]]
    return {
        "rank 0": found[0][1],
        "others": {"least": min(others), "most": max(others)},
        "all": sum(row[1] for row in found),
        "kib": max(row[2] for row in found),
        "seconds": round(max(row[3] for row in found), 2),
    }


def expected(world_size: int, lazy: bool) -> dict[str, int]:
    """Sockets at most, by formula: of each group the connections and a listener, and one to the store.

    At first use: of the default group the two neighbours in the ring of a reduction; of those for checkpoints
    these, the tree of a broadcast (log2 of the ranks), and rank 0, which gathers from all and scatters to
    all.
    """
    if not lazy:
        each = GROUPS * world_size + 1
        return {"rank 0": each, "others": each}
    return {
        "rank 0": (2 + 1) + (GROUPS - 1) * world_size + 1,
        "others": (2 + 1) + 1 + (GROUPS - 1) * (2 + math.ceil(math.log2(world_size)) + 1 + 1),
    }


def measure(sizes: tuple[int, ...]) -> dict[str, Any]:
    """Measure and return the document that `--json` prints."""
    load = os.getloadavg()[0]
    rows = []
    for size in sizes:
        for lazy in (True, False):
            print(f"{size} ranks, connections {'at first use' if lazy else 'at once'}", file=sys.stderr)
            rows.append({"ranks": size, "lazy": lazy, **count(size, lazy), "formula": expected(size, lazy)})
    return {
        **command.environment(("torch",)),
        "load_at_start": round(load, 2),
        "rows": rows,
        "far": [{"ranks": FAR, "lazy": lazy, **expected(FAR, lazy)} for lazy in (True, False)],
    }


def show(document: dict[str, Any]) -> None:
    """Print the table of docs/scale.md."""
    command.show_environment(document)
    print("| ranks | connections | sockets of rank 0 | of each other | of all | KiB | seconds |")
    print("|---|---|---|---|---|---|---|")
    for row in document["rows"]:
        others = f"{row['others']['least']} to {row['others']['most']}"
        cells = (row["rank 0"], others, row["all"], row["kib"], row["seconds"])
        kind = "at first use" if row["lazy"] else "at once"
        print(f"| {row['ranks']} | {kind} | {' | '.join(map(str, cells))} |")
    for row in document["far"]:
        kind = "at first use" if row["lazy"] else "at once"
        print(f"| {row['ranks']:,} by formula | {kind} | {row['rank 0']:,} | {row['others']:,} | | | |")


def _chosen(names: str, smoke: bool) -> dict[str, Any]:
    if smoke:
        return measure((2, 4))
    return measure(tuple(int(each) for each in names.split(",")) if names else RANKS)


def main() -> int:
    """Measure and print."""
    return command.run(__doc__, "ranks", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
