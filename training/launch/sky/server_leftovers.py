"""Ends what a killed SkyPilot server has left.

When SkyPilot's API server is killed, for example by the kernel for its memory, its executors and its queue
manager stay. The queue manager keeps a port that the next server needs, so none starts any more
(sky/server/requests/queues/base.py, MultiprocessingQueueFactory.start), and `sky api stop` does not find it.
All of them are in the dead server's process group. Controllers of managed jobs are in groups of their own
(launch_new_process_tree in sky/utils/subprocess_utils.py), and the next server finds them again.
"""

from __future__ import annotations

import contextlib
import os

import psutil

from trainfleet.orphan_reaper import is_daemon
from trainfleet.process import every_process

SERVER_PORT, QUEUE_PORT = 46580, 50011
"""SkyPilot's defaults (sky/server/common.py, sky/server/requests/queues/mp_queue.py)."""
OF_SERVER = "IS_SKYPILOT_SERVER"
"""A variable of the server and of what it starts."""
TITLE = "SkyPilot:"
"""How the titles of its workers and executors begin. A title is written over the environment, which can no
longer be read (setproctitle in sky/server/requests/executor.py).
"""


def queue_port(port: str) -> int:
    """The port of the queue manager of the server with this port (get_queue_manager_port in mp_queue.py)."""
    offset = int(port) - SERVER_PORT
    return QUEUE_PORT if offset == 0 else 50000 + (QUEUE_PORT - 50000 + offset) % 10000


def end_leftovers(port: str) -> bool:
    """End what a dead server of this user with this port has left; whether there was anything."""
    with contextlib.suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp"):
            if each.status != psutil.CONN_LISTEN or not each.laddr or each.laddr.port != queue_port(port):
                continue
            # The parent of a queue manager is its server; once that is dead, it is another process.
            if each.pid and _is_of_server(each.pid) and not is_daemon(psutil.Process(each.pid).ppid()):
                _kill_group(os.getpgid(each.pid))
                return True
    return False


def _kill_group(group: int) -> None:
    """Kill what a server has started in a process group, and wait for its end."""
    found = []
    for process in every_process():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) == group and _is_of_server(process.pid):
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=5)


def _is_of_server(pid: int) -> bool:
    process = psutil.Process(pid)
    return OF_SERVER in process.environ() or "".join(process.cmdline()).startswith(TITLE)
