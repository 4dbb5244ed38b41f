"""Cost of a checkpoint for the step loop and the store: 50 million parameters with AdamW, on two ranks.

    python -m benchmarks.checkpoints [--smoke] [--json]

Each round measures a plain memory copy of the bytes that a rank saves, the stall of an asynchronous save to a
folder, and a synchronous save to an S3 gateway on the loopback interface. The first save, which also
allocates its buffers, is reported separately. Finally, one of two workers is killed (benchmarks/restart.py).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import command
from benchmarks.restart import SIZES, restart
from benchmarks.restart import TARGET as RESTART_TARGET
from trainfleet.errors import TrainfleetError

if TYPE_CHECKING:
    from trainfleet.training.checkpoint import Checkpoints

RANKS = 2
COPY_TARGET, SYNC_TARGET, BYTES_TARGET = 2.0, 0.05, 1.05


def measure(millions: float, rounds: int, places: tuple[str, ...]) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints. Times are in seconds.

    Raises:
        TrainfleetError: a rank failed, or the S3 gateway cannot be built.
    """
    timed = _run_ranks(millions, rounds)
    slowest = {
        what: [max(each[what][number] for each in timed) for number in range(rounds)]
        for what in ("copy", "stall", "sync", "behind")
    }
    stall, sync = statistics.median(slowest["stall"]), statistics.median(slowest["sync"])
    copies = [stalled / copied for stalled, copied in zip(slowest["stall"], slowest["copy"], strict=True)]
    return {
        **command.environment(("torch",)),
        "parameters": timed[0]["parameters"],
        "ranks": RANKS,
        "rounds": rounds,
        "share_bytes": timed[0]["share"],
        "seconds": {what: command.summary(times, 4) for what, times in slowest.items()},
        "first_save_stall": round(max(each["first"] for each in timed), 4),
        "poll_seconds": round(statistics.median(each["poll"] for each in timed), 6),
        "ratio": {
            "stall / plain copy": round(statistics.median(copies), 3),
            "stall / synchronous save to S3": round(stall / sync, 4),
            "bytes written / model and optimizer": round(timed[0]["written"] / timed[0]["state"], 5),
        },
        "seconds_from_kill_to_next_step": {
            place: round(restart("lm-tiny", place, SIZES["tiny"])["in all"], 2) for place in places
        },
        "target": {
            "seconds from SIGKILL of a worker to the next step": RESTART_TARGET,
            "stall / plain copy": COPY_TARGET,
            "stall / synchronous save to S3": SYNC_TARGET,
            "bytes written / model and optimizer": BYTES_TARGET,
        },
    }


def _run_ranks(millions: float, rounds: int) -> list[dict[str, Any]]:
    """Start the ranks and an S3 gateway; returns what each rank printed."""
    import torch.distributed as dist

    from trainfleet.local_cluster.stores.servers import start

    # As in ranks.start: this process serves the store of the process group.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory(prefix="trainfleet-checkpoints-") as folder:
        (Path(folder) / "s3").mkdir()
        with start("s3", Path(folder) / "s3") as server:
            environment = os.environ | server.environment(server.port)
            environment |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
            environment |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
            environment |= {"GLOO_SOCKET_IFNAME": "lo"}
            program = [sys.executable, "-m", "benchmarks.checkpoints", "--rank"]
            ranks = [
                subprocess.Popen(
                    [*program, folder, server.url, str(millions), str(rounds)],
                    env=environment | {"RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in range(RANKS)
            ]
            outputs = [rank.communicate() for rank in ranks]
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        if rank.returncode:
            reason = errors.strip().splitlines()[-1] if errors.strip() else rank.returncode
            raise TrainfleetError(f"a rank failed: {reason}")
    return [json.loads(stdout) for stdout, _ in outputs]


def run_rank(folder: str, url: str, millions: float, rounds: int) -> None:
    """Measure on one rank, and print its times as JSON."""
    import torch
    import torch.distributed as dist

    from trainfleet.training.checkpoint import Checkpoints
    from trainfleet.training.checkpoint.plan import flat
    from trainfleet.training.recipe.schema import CheckpointConfig
    from trainfleet.training.stores import open_store

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensors, parameters = _sharded(millions)
    local = [
        getattr(each, "to_local", lambda each=each: each)()
        for each in flat(tensors()).values()
        if isinstance(each, torch.Tensor)
    ]
    # Allocated and written once before the measurement, as the buffers of a save are.
    buffers = [torch.empty_like(each).copy_(each) for each in local]
    settings = CheckpointConfig(keep_last=1, keep_best=False)
    local_checkpoints = Checkpoints(open_store(f"{folder}/near"), settings, _ignore)
    remote_checkpoints = Checkpoints(open_store(f"{url}/far"), settings, _ignore)

    def copy() -> None:
        for buffer, each in zip(buffers, local, strict=True):
            buffer.copy_(each)

    def save(into: Checkpoints, number: int, wait: bool = False) -> None:
        into.save(number, tensors(), {}, {}, {})
        if wait:
            into.finish()

    times: dict[str, list[float]] = {"copy": [], "stall": [], "sync": [], "behind": []}
    first = _seconds(save, local_checkpoints, 0)
    save(remote_checkpoints, 0, True)
    local_checkpoints.finish()
    for number in range(1, rounds + 1):
        for what, action in (
            ("copy", copy),
            ("stall", partial(save, local_checkpoints, number)),
            ("behind", local_checkpoints.finish),
            ("sync", partial(save, remote_checkpoints, number, True)),
        ):
            if what != "behind":
                dist.barrier()
            times[what].append(_seconds(action))
    document = {
        **times,
        "first": first,
        "poll": _poll(local_checkpoints, lambda: save(local_checkpoints, rounds + 1)),
        "share": sum(each.nbytes for each in local),
        "written": sum(local_checkpoints.store.sizes(f"step-{rounds + 1:08}").values()),
        "state": parameters * 4 * 3,
        "parameters": parameters,
    }
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(document))


def _sharded(millions: float) -> tuple[Callable[[], dict[str, Any]], int]:
    """A sharded stack of square layers with AdamW's state: a function that returns the tensors, and the
    number of parameters.
    """
    import torch
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    width = 1024
    layers = max(2, round(millions * 1e6 / width / width))
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()

    def tensors() -> dict[str, Any]:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": dict(optimizer_state)}

    return tensors, sum(each.numel() for each in model.parameters())


def _poll(checkpoints: Checkpoints, save: Callable[[], None]) -> float:
    """The seconds of one poll during a save."""
    save()
    polls: list[float] = []
    ended = False
    while not ended:
        began = time.perf_counter()
        ended = checkpoints.poll() is not None
        polls.append(time.perf_counter() - began)
        time.sleep(0.02)
    return statistics.median(polls)


def _seconds(action: Callable[..., Any], *arguments: Any) -> float:
    began = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - began


def _ignore(_what: str, _text: str) -> None:
    """Drop a message of the checkpoints."""


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    command.show_environment(document)
    share = document["share_bytes"] / 2**20
    ranks = f"{document['ranks']} ranks, {share:.0f} MiB each, {document['rounds']} rounds"
    print(f"{document['parameters']:,} parameters with AdamW, {ranks}\n")
    print("| what | median s | min | max | target |\n|---|---|---|---|---|")
    names = {
        "copy": "plain memory copy of a rank's share",
        "stall": "stall of an asynchronous save",
        "behind": "asynchronous write until the commit",
        "sync": "synchronous save to the S3 gateway",
    }
    for key, name in names.items():
        row = document["seconds"][key]
        print(f"| {name} | {row['median']:.4f} | {row['least']:.4f} | {row['most']:.4f} | |")
    print(f"| stall of the first save | {document['first_save_stall']:.4f} | | | |")
    print(f"| poll, once per step | {document['poll_seconds']:.6f} | | | |")
    for place, seconds in document["seconds_from_kill_to_next_step"].items():
        name = f"from SIGKILL of a worker to the next step, {place}"
        print(f"| {name} | {seconds} | | | <= {RESTART_TARGET:g} |")
    for name, value in document["ratio"].items():
        print(f"| {name} | {value} | | | <= {document['target'][name]} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    if smoke:
        return measure(float(name or 2), 2, ("torchrun",))
    return measure(float(name or 50), 7, ("torchrun", "local"))


def main() -> int:
    """Measure and print; 50 million parameters by default."""
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        folder, url, millions, rounds = sys.argv[2:]
        run_rank(folder, url, float(millions), int(rounds))
        return 0
    return command.run(__doc__, "millions", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
