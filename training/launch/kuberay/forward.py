"""A port of this machine that leads to a port of a pod, through the API server, for as long as it is wanted.

Used by `trainfleet dashboard`. Easy to get wrong: a browser opens many connections at once, and each needs a
way of its own.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.kuberay.client import ApiError, Cluster

CHUNK = 1 << 16


@contextlib.contextmanager
def forwarded(
    cluster: Cluster, pod: Callable[[], str], port: int, local_port: int, complain: Callable[[str], Any]
) -> Iterator[int]:
    """Listen on 127.0.0.1 and carry each connection to `port` of `pod()`; yields the port that it listens on.

    Raises:
        InputError: the port of this machine is taken.
    """
    try:
        server = socket.create_server(("127.0.0.1", local_port))
    except OSError as error:
        raise InputError(
            "cannot listen",
            [
                Problem(
                    f"127.0.0.1:{local_port}", error.strerror or str(error), "choose another with --port N"
                )
            ],
        ) from error

    def accept() -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=carry, args=(near,), daemon=True).start()

    def carry(near: socket.socket) -> None:
        with near:
            try:
                far = cluster.forward(pod(), port)
            except (ApiError, InputError) as error:
                complain(error.summary)
                return
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join(5)
            with contextlib.suppress(OSError):
                far.close()

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
