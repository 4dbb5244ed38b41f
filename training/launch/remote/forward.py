"""Forwards a port of this machine to a port of a pod, through the API server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster

CHUNK = 1 << 16


@contextlib.contextmanager
def forwarded(
    cluster: Cluster, pod: Callable[[], str], port: int, local_port: int, report: Callable[[str], Any]
) -> Iterator[int]:
    """Listen on 127.0.0.1 and forward each connection to `port` of `pod()`; yields the local port.

    Raises:
        InputError: the local port is in use.
    """
    try:
        server = socket.create_server(("127.0.0.1", local_port))
    except OSError as error:
        what = error.strerror or str(error)
        problem = Problem(f"127.0.0.1:{local_port}", what, "choose another with --port N")
        raise InputError("cannot listen on the port", [problem]) from error

    def accept() -> None:
        while True:
            try:
                local, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=forward, args=(local,), daemon=True).start()

    def forward(local: socket.socket) -> None:
        with local:
            try:
                pod_socket = cluster.forward(pod(), port)
            except (ApiError, InputError) as error:
                report(error.summary)
                return
            back = threading.Thread(target=_pump, args=(pod_socket, local), daemon=True)
            back.start()
            _pump(local, pod_socket)
            back.join(5)
            with contextlib.suppress(OSError):
                pod_socket.close()

    threading.Thread(target=accept, daemon=True, name="forward").start()
    try:
        yield int(server.getsockname()[1])
    finally:
        server.close()


def _pump(source: Any, target: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
