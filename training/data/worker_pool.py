"""Doing a pure function on many items in parallel: in this process, in processes of our own, or by ray.data.

Used by `preparation`. Results come as they are ready, so whoever asks must not depend on their order. Easy to
get wrong: under Ray
Train all CPUs may belong to the workers themselves, and a task would then wait for ever: Ray is used where it
has a CPU free.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal

from trainfleet.errors import TrainfleetError

Via = Literal["auto", "here", "processes", "ray"]
Work = Callable[[Any], Any]
AHEAD = 2
"""Items in work per process: results that nobody has taken yet are held in memory."""


def choose(via: Via, size: int, items: int, worth: int) -> Via:
    """What `auto` means: here for little data (`size` bytes below `worth`), else Ray where it has CPUs free,
    else processes.
    """
    if via != "auto":
        return via
    if size < worth or items < 2:
        return "here"
    return "ray" if _free_ray() else "processes"


def results(
    work: Work, items: Sequence[Any], via: Via, processes: int | None = None, local: bool = True
) -> Iterator[tuple[int, Any]]:
    """`work` done on each item, with the item's number.

    Args:
        work: a picklable function of one item.
        via: as `choose` says.
        processes: how many processes of our own; by default as many as there are CPUs.
        local: the items are files of this machine, so Ray must do the work on it.

    Raises:
        TrainfleetError: a process was killed; most likely the machine ran out of memory.
    """
    if via == "ray":
        yield from _by_ray(work, items, local)
    elif via == "processes":
        yield from _by_processes(work, items, min(processes or cpus(), len(items)))
    else:
        for number, item in enumerate(items):
            yield number, work(item)


def cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _by_processes(work: Work, items: Sequence[Any], processes: int) -> Iterator[tuple[int, Any]]:
    fresh = multiprocessing.get_context(
        "spawn"
    )  # a fork would copy torch's and Ray's threads in whatever state they are
    with ProcessPoolExecutor(
        max(1, processes), mp_context=fresh, initializer=_settle, initargs=(os.getpid(),)
    ) as pool:
        todo = iter(enumerate(items))
        running: dict[Future[Any], int] = {}
        try:
            while True:
                for number, item in todo:
                    running[pool.submit(work, item)] = number
                    if len(running) >= AHEAD * processes:
                        break
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(done), done.result()
        except BrokenProcessPool as error:
            raise TrainfleetError(
                "a process that prepared data was killed, most likely for want of memory; start again and it goes on"
            ) from error
        finally:
            for each in running:
                each.cancel()


def _settle(parent: int) -> None:
    """Leave with the process that started this one, and use one thread: there is a process for each CPU."""
    from trainfleet.process import die_with

    die_with(parent)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _free_ray() -> bool:
    ray = sys.modules.get("ray")
    return bool(ray is not None and ray.is_initialized() and ray.available_resources().get("CPU", 0) >= 1)


def _by_ray(work: Work, items: Sequence[Any], local: bool) -> Iterator[tuple[int, Any]]:
    """By a ray.data pipeline of one task per item, whose results stream back here."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    packed = pickle.dumps(work)

    def do(row: dict[str, Any]) -> dict[str, Any]:
        return {
            "number": row["number"],
            "result": pickle.dumps(pickle.loads(packed)(pickle.loads(row["item"]))),
        }

    rows = [{"number": number, "item": pickle.dumps(item)} for number, item in enumerate(items)]
    here: dict[str, Any] = (
        {
            "scheduling_strategy": NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
        }
        if local
        else {}
    )
    logging.getLogger("ray.data").setLevel(
        logging.WARNING
    )  # its plan and progress; ours is told by who asked
    data = ray.data.from_items(rows, override_num_blocks=len(rows)).map(do, num_cpus=1, **here)
    data.context.enable_progress_bars = False
    for row in data.iter_rows():
        yield int(row["number"]), pickle.loads(row["result"])
