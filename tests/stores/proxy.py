"""A proxy in front of a store that injects faults into as many connections as a test sets.

It is a process of its own (this file as a script), controlled over a pipe: some clients hold the GIL while
they wait. A fault first closes the open connections, so that the next request meets it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Fault = Literal["reset", "hang", "status", "cut"]


@dataclass
class _Plan:
    fault: Fault
    left: int
    status: int = 503
    after: int = 0
    body: str = ""


class Proxy:
    """A client of the proxy process. The proxy listens on `port` and forwards to the port set by `aim`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port: int = self._ask("port")

    def aim(self, port: int) -> None:
        self._ask("aim", port=port)

    def fail(self, fault: Fault, times: int, status: int = 503, after: int = 0, body: str = "") -> None:
        """Let the next `times` connections fail.

        reset: the connection is reset after `after` bytes of the request. hang: nothing is answered until
        `repair`. status: each request is answered with `status` and `body`. cut: the answer ends after
        `after` bytes.
        """
        self._ask("fail", fault=fault, times=times, status=status, after=after, body=body)

    def repair(self) -> None:
        """Inject no more faults."""
        self._ask("repair")

    @property
    def injected(self) -> int:
        """The number of connections that have failed since the last `fail`."""
        return self._ask("injected")

    @property
    def answered(self) -> int:
        """The number of bytes that the server has answered."""
        return self._ask("answered")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, what: str, **settings: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **settings}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class _Proxy:
    """The proxy itself."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target = 0
        self.injected = 0
        self.answered = 0
        self._plan: _Plan | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._released = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def fail(self, fault: Fault, times: int, status: int, after: int, body: str) -> None:
        with self._lock:
            self._plan, self.injected = _Plan(fault, times, status, after, body), 0
            self._released.clear()
        self._drop()

    def repair(self) -> None:
        with self._lock:
            self._plan = None
        self._released.set()
        self._drop()

    def _drop(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _count(self, size: int) -> None:
        with self._lock:
            self.answered += size

    def _next_fault(self) -> _Plan | None:
        with self._lock:
            if self._plan is None or self._plan.left == 0:
                return None
            self._plan.left -= 1
            self.injected += 1
            return self._plan

    def _serve(self, client: socket.socket) -> None:
        plan = self._next_fault()
        with contextlib.suppress(OSError), client:
            self._open.add(client)
            try:
                if plan is not None and plan.fault == "hang":
                    self._released.wait()
                elif plan is not None and plan.fault == "status":
                    client.recv(1 << 16)
                    kind = "Content-Type: application/xml\r\n" if plan.body else ""
                    head = (
                        f"HTTP/1.1 {plan.status} Injected\r\n{kind}"
                        f"Content-Length: {len(plan.body)}\r\nConnection: close\r\n\r\n"
                    )
                    client.sendall((head + plan.body).encode())
                else:
                    self._forward(client, plan)
            finally:
                self._open.discard(client)

    def _forward(self, client: socket.socket, plan: _Plan | None) -> None:
        with socket.create_connection(("127.0.0.1", self.target)) as server:
            upwards = plan.after if plan is not None and plan.fault == "reset" else None
            downwards = plan.after if plan is not None and plan.fault == "cut" else None
            up = threading.Thread(target=_pump, args=(client, server, upwards), daemon=True)
            up.start()
            _pump(server, client, downwards, self._count)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            up.join(5)


def _pump(
    source: socket.socket,
    sink: socket.socket,
    limit: int | None,
    count: Callable[[int], None] = lambda _: None,
) -> None:
    """Copy bytes until an end. After `limit` bytes, reset the source."""
    passed = 0
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            if limit is not None and passed + len(data) > limit:
                sink.sendall(data[: max(0, limit - passed)])
                for each in (source, sink):
                    # Wakes the other direction. Otherwise the kernel keeps the connection.
                    each.shutdown(socket.SHUT_RD)
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    each.close()
                return
            count(len(data))
            sink.sendall(data)
            passed += len(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def main() -> None:
    """Serve until stdin ends; every command is answered with a number."""
    proxy = _Proxy()
    for line in sys.stdin:
        command = json.loads(line)
        match what := command.pop("what"):
            case "aim":
                proxy.target = command["port"]
            case "fail":
                proxy.fail(**command)
            case "repair":
                proxy.repair()
        numbers = {"injected": proxy.injected, "answered": proxy.answered}
        print(numbers.get(what, proxy.port), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
