"""What does a checkpoint cost the step loop, and the store? 50 million parameters with AdamW's state, in
shards on two ranks.

    python -m benchmarks.checkpoints [--smoke] [--json]

In turn: a plain memory copy of the bytes that a rank saves, the stall of an asynchronous save to a folder,
and a synchronous save to
an S3 gateway on the loopback. Then a run of two workers loses one to SIGKILL, and the time to its next step
is taken. Easy to get wrong: the first save also allocates its buffers and plans, and is given apart; and the
copy
must be of this rank's share into memory that has been touched before, as the save's is.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import command
from benchmarks.restart import SIZES, restart
from benchmarks.restart import TARGET as RESTART_TARGET
from trainfleet.errors import TrainfleetError
from trainfleet.training.runtime import local_resources

RANKS = 2
COPY_TARGET, SYNC_TARGET, BYTES_TARGET = 2.0, 0.05, 1.05


def measure(millions: float, rounds: int, places: tuple[str, ...]) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints. Times are in seconds.

    Raises:
        TrainfleetError: a rank failed, or there is no S3 gateway here.
    """
    from trainfleet.local_cluster.stores.servers import free_port, start

    with (
        tempfile.TemporaryDirectory(prefix="trainfleet-checkpoints-") as folder,
        start("s3", _made(Path(folder) / "s3")) as server,
    ):
        environment = (
            os.environ
            | server.environment(server.port)
            | {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        )
        environment |= {"MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
        call = [
            sys.executable,
            "-m",
            "benchmarks.checkpoints",
            "--rank",
            folder,
            server.url,
            str(millions),
            str(rounds),
        ]
        ranks = [
            subprocess.Popen(
                call,
                env=environment | {"RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        said = [rank.communicate() for rank in ranks]
        for rank, (_, errors) in zip(ranks, said, strict=True):
            if rank.returncode:
                raise TrainfleetError(
                    f"a rank failed: {errors.strip().splitlines()[-1] if errors.strip() else rank.returncode}"
                )
        timed = [json.loads(stdout) for stdout, _ in said]
    slowest = {
        what: [max(each[what][number] for each in timed) for number in range(rounds)]
        for what in ("copy", "stall", "sync", "behind")
    }
    stall, sync = statistics.median(slowest["stall"]), statistics.median(slowest["sync"])
    copies = [stalled / copied for stalled, copied in zip(slowest["stall"], slowest["copy"], strict=True)]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": local_resources.describe(),
        "load": round(os.getloadavg()[0], 2),
        "versions": {"python": platform.python_version(), "torch": importlib.metadata.version("torch")},
        "parameters": timed[0]["parameters"],
        "ranks": RANKS,
        "rounds": rounds,
        "share_bytes": timed[0]["share"],
        "seconds": {
            what: {
                "median": round(statistics.median(times), 4),
                "least": round(min(times), 4),
                "most": round(max(times), 4),
            }
            for what, times in slowest.items()
        },
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


def rank_main(folder: str, url: str, millions: float, rounds: int) -> None:
    """One rank: prints its times as JSON."""
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
    buffers = [torch.empty_like(each).copy_(each) for each in local]
    settings = CheckpointConfig(keep_last=1, keep_best=False)
    near, far = (
        Checkpoints(open_store(place), settings, _quiet) for place in (f"{folder}/near", f"{url}/far")
    )

    def copy() -> None:
        for buffer, each in zip(buffers, local, strict=True):
            buffer.copy_(each)

    def save(into: Checkpoints, number: int, wait: bool = False) -> None:
        into.save(number, tensors(), {}, {}, {})
        if wait:
            into.finish()

    times: dict[str, list[float]] = {"copy": [], "stall": [], "sync": [], "behind": []}
    first = _seconds(save, near, 0)
    save(far, 0, True)
    near.finish()
    for number in range(1, rounds + 1):
        for what, action in (
            ("copy", copy),
            ("stall", partial(save, near, number)),
            ("behind", near.finish),
            ("sync", partial(save, far, number, True)),
        ):
            if what != "behind":
                dist.barrier()
            times[what].append(_seconds(action))
    document = {
        **times,
        "first": first,
        "poll": _poll(near, lambda: save(near, rounds + 1)),
        "share": sum(each.nbytes for each in local),
        "written": sum(near.store.sizes(f"step-{rounds + 1:08}").values()),
        "state": parameters * 4 * 3,
        "parameters": parameters,
    }
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(document))


def _sharded(millions: float) -> tuple[Callable[[], dict[str, Any]], int]:
    """A stack of square layers in shards, with AdamW's state: what gives its tensors, and how many numbers
    the model has.
    """
    import torch
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    width = 1024
    model = torch.nn.Sequential(
        *(torch.nn.Linear(width, width) for _ in range(max(2, round(millions * 1e6 / width / width))))
    )
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()

    def tensors() -> dict[str, Any]:
        held, state = get_state_dict(model, optimizer)
        return {"model": held, "optimizer": dict(state)}

    return tensors, sum(each.numel() for each in model.parameters())


def _poll(kept: Any, save: Callable[[], None]) -> float:
    """What asking costs while a save is under way, per step."""
    save()
    polls: list[float] = []
    ended = False
    while not ended:
        began = time.perf_counter()
        ended = kept.poll() is not None
        polls.append(time.perf_counter() - began)
        time.sleep(0.02)
    return statistics.median(polls)


def _seconds(action: Callable[..., Any], *arguments: Any) -> float:
    began = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - began


def _quiet(_what: str, _text: str) -> None:
    return None


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def show(document: dict[str, Any]) -> None:
    """Print the figures as they go into docs/benchmarks.md."""
    print(f"{document['date']}, {document['machine']}, load {document['load']} at the end")
    print(", ".join(f"{name} {version}" for name, version in document["versions"].items()))
    share = document["share_bytes"] / 2**20
    print(
        f"{document['parameters']:,} parameters with AdamW, {document['ranks']} ranks, {share:.0f} MiB each, {document['rounds']} rounds\n"
    )
    print("| what | median s | least | most | target |\n|---|---|---|---|---|")
    names = {
        "copy": "plain memory copy of a rank's share",
        "stall": "stall of an asynchronous save",
        "behind": "until it is whole, behind the loop",
        "sync": "synchronous save to the S3 gateway",
    }
    for key, name in names.items():
        row = document["seconds"][key]
        print(f"| {name} | {row['median']:.4f} | {row['least']:.4f} | {row['most']:.4f} | |")
    print(f"| stall of the first save | {document['first_save_stall']:.4f} | | | |")
    print(f"| asking once per step | {document['poll_seconds']:.6f} | | | |")
    for place, seconds in document["seconds_from_kill_to_next_step"].items():
        print(
            f"| from SIGKILL of a worker to the next step, {place} | {seconds} | | | <= {RESTART_TARGET:g} |"
        )
    for name, value in document["ratio"].items():
        print(f"| {name} | {value} | | | <= {document['target'][name]} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    return measure(
        float(name or (2 if smoke else 50)),
        2 if smoke else 7,
        ("torchrun",) if smoke else ("torchrun", "local"),
    )


def main() -> int:
    """Measure and print; 50 million parameters by default."""
    if len(sys.argv) > 1 and sys.argv[1] == "--rank":
        folder, url, millions, rounds = sys.argv[2:]
        rank_main(folder, url, float(millions), int(rounds))
        return 0
    return command.run(__doc__, "millions", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
