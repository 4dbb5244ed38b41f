"""How fast does `trainfleet serve` answer, and what happens when more is asked than it can do? Load over the
loopback.

    python -m benchmarks.serving [--run RUN] [--smoke] [--json]

Clients that each ask again as soon as they are answered, few and then many; at last more rows than the queue
holds. Without one a
small picture model is trained first. Easy to get wrong: clients and server share this machine's cores, so
these are not the figures
of a server alone; and a refusal is an answer too, so those are counted and timed apart.
"""

from __future__ import annotations

import asyncio
import datetime
import importlib.metadata
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import command
from trainfleet.errors import TrainfleetError
from trainfleet.training.runtime import local_resources

QUEUE = 32
START_LIMIT_S = 600
PACKAGES = ("torch", "ray")
TRAINFLEET = str(Path(sys.executable).with_name("trainfleet"))


def measure(run: str, clients: list[int], seconds: float) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints.

    Raises:
        TrainfleetError: the server did not start, or gave something else than answers and refusals.
    """
    with tempfile.TemporaryDirectory(prefix="trainfleet-serving-") as folder:
        source = run or _trained(Path(folder))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        began = time.monotonic()
        server = subprocess.Popen(
            [TRAINFLEET, "serve", source, "--port", str(port), "--queue", str(QUEUE), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _wait_for(server, port)
            ready = time.monotonic() - began
            stages = [asyncio.run(load(port, count, seconds)) for count in clients]
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=START_LIMIT_S)
            drained = time.monotonic() - began
        finally:
            if server.poll() is None:
                server.terminate()
                server.communicate(timeout=START_LIMIT_S)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": local_resources.describe(),
        "load": round(os.getloadavg()[0], 2),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        "queue": QUEUE,
        "seconds_per_stage": seconds,
        "ready_seconds": round(ready, 1),
        "drain_seconds": round(drained, 1),
        "stages": stages,
    }


async def load(port: int, clients: int, seconds: float) -> dict[str, Any]:
    """`clients` that ask for one row again and again for so long.

    Raises:
        TrainfleetError: an answer that is neither a prediction nor a refusal.
    """
    import aiohttp

    body = json.dumps({"rows": [{"image": [[0] * 8] * 8}]}).encode()
    times: dict[int, list[float]] = {200: [], 503: []}
    codes: Counter[int] = Counter()
    end = time.monotonic() + seconds

    async def client(session: aiohttp.ClientSession) -> None:
        while time.monotonic() < end:
            began = time.perf_counter()
            async with session.post(f"http://127.0.0.1:{port}/predict", data=body) as reply:
                await reply.read()
                codes[reply.status] += 1
                if reply.status not in times:
                    raise TrainfleetError(f"the server answered {reply.status}")
                times[reply.status].append(time.perf_counter() - began)
                if reply.status == 503:
                    await asyncio.sleep(0.1)  # a polite client waits; one that hammers measures itself

    began = time.monotonic()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    taken = time.monotonic() - began
    return {
        "clients": clients,
        "answered_per_second": round(codes[200] / taken, 1),
        "answered": quantiles(times[200]),
        "refused_share": round(codes[503] / max(1, sum(codes.values())), 4),
        "refused": quantiles(times[503]),
    }


def quantiles(times: list[float]) -> dict[str, float | int]:
    """Milliseconds at 50, 95 and 99 percent, and how many."""
    if len(times) < 2:
        return {"count": len(times)}
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {f"p{percent}_ms": round(cuts[percent - 1] * 1e3, 1) for percent in (50, 95, 99)} | {
        "count": len(times)
    }


def show(document: dict[str, Any]) -> None:
    """Print the figures as they go into docs/benchmarks.md."""
    print(f"{document['date']}, {document['machine']}, load {document['load']} at the end")
    print(", ".join(f"{name} {version}" for name, version in document["versions"].items()))
    print(
        f"ready after {document['ready_seconds']} s, drained in {document['drain_seconds']} s; a queue of {document['queue']} rows\n"
    )
    print(
        "| clients | answered/s | p50 ms | p95 ms | p99 ms | refused | p99 of a refusal, ms |\n|---|---|---|---|---|---|---|"
    )
    for each in document["stages"]:
        cells = [each["answered"].get(f"p{percent}_ms", "-") for percent in (50, 95, 99)]
        refused = each["refused"].get("p99_ms", "-")
        print(
            f"| {each['clients']} | {each['answered_per_second']} | {' | '.join(map(str, cells))} | {each['refused_share']:.1%} | {refused} |"
        )


def _trained(folder: Path) -> str:
    changes = ["scaling.workers=1", "steps=60", "validation.every=60", "checkpoint.every=60"]
    arguments = [
        "launch",
        "vision-small",
        *changes,
        "--on",
        "torchrun",
        "--run",
        "served",
        "--storage",
        str(folder),
        "--json",
    ]
    done = subprocess.run([TRAINFLEET, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrainfleetError(f"the model was not trained: {done.stderr.strip()}")
    return str(folder / "served")


def _wait_for(server: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise TrainfleetError(f"the server ended: {server.communicate()[1].strip()}")
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as channel:
                channel.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                if b" 200 " in channel.recv(64):
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise TrainfleetError(f"the server was not ready after {START_LIMIT_S} s")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    return measure(name, [2, 2 * QUEUE], 3.0) if smoke else measure(name, [1, 8, 24, 4 * QUEUE], 20.0)


def main() -> int:
    """Measure and print; of a small picture model by default."""
    return command.run(__doc__, "run", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
