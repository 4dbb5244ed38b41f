"""Latency and throughput of `trainfleet serve` under load and overload.

    python -m benchmarks.serving [--run RUN] [--smoke] [--json]

Clients on the loopback interface send the next request as soon as the last is answered: few, many, and then
more than the queue holds. Without --run, a small image model is trained first. Clients and server share this
machine's cores, so a server of its own is faster. Rejections (503) are counted and timed separately.
"""

from __future__ import annotations

import asyncio
import json
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

QUEUE = 32
START_LIMIT_S = 600
PACKAGES = ("torch", "ray")
TRAINFLEET = str(Path(sys.executable).with_name("trainfleet"))


def measure(run: str, clients: list[int], seconds: float) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints.

    Raises:
        TrainfleetError: the server did not start, or an answer was neither a prediction nor a rejection.
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
        **command.environment(PACKAGES),
        "queue": QUEUE,
        "seconds_per_stage": seconds,
        "ready_seconds": round(ready, 1),
        "drain_seconds": round(drained, 1),
        "stages": stages,
    }


async def load(port: int, clients: int, seconds: float) -> dict[str, Any]:
    """Send requests of one row from `clients` concurrent clients for `seconds`.

    Raises:
        TrainfleetError: an answer was neither a prediction nor a rejection.
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
                    await asyncio.sleep(0.1)  # without a pause, the clients would measure themselves

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
    """The 50th, 95th and 99th percentile in milliseconds, and the count."""
    if len(times) < 2:
        return {"count": len(times)}
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {f"p{percent}_ms": round(cuts[percent - 1] * 1e3, 1) for percent in (50, 95, 99)} | {
        "count": len(times)
    }


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    command.show_environment(document)
    ready, drained = document["ready_seconds"], document["drain_seconds"]
    print(f"ready after {ready} s, drained in {drained} s; a queue of {document['queue']} rows\n")
    print("| clients | answered/s | p50 ms | p95 ms | p99 ms | rejected | p99 of a rejection, ms |")
    print("|---|---|---|---|---|---|---|")
    for each in document["stages"]:
        cells = [each["answered"].get(f"p{percent}_ms", "-") for percent in (50, 95, 99)]
        cells += [f"{each['refused_share']:.1%}", each["refused"].get("p99_ms", "-")]
        row = [each["clients"], each["answered_per_second"], *cells]
        print(f"| {' | '.join(map(str, row))} |")


def _trained(folder: Path) -> str:
    changes = ["scaling.workers=1", "steps=60", "validation.every=60", "checkpoint.every=60"]
    arguments = ["launch", "vision-small", *changes, "--on", "torchrun"]
    arguments += ["--run", "served", "--storage", str(folder), "--json"]
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
    """Measure and print; a small image model by default."""
    return command.run(__doc__, "run", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
