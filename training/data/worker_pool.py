"""Applies a pure function to many items in parallel: in this process, in a process pool, or with ray.data.

Results arrive in completion order, so callers must not depend on it.
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
from trainfleet.training.runtime import code_archive

Via = Literal["auto", "here", "processes", "ray"]
Work = Callable[[Any], Any]
TASKS_PER_PROCESS = 2
"""Items in flight per process; results that are not consumed yet are held in memory."""


def choose_via(via: Via, size: int, items: int, parallel_from: int) -> Via:
    """Resolve `auto`: this process below `parallel_from` bytes, else Ray if a CPU is free, else processes."""
    if via != "auto":
        return via
    if size < parallel_from or items < 2:
        return "here"
    return "ray" if _ray_has_free_cpu() else "processes"


def map_unordered(
    work: Work, items: Sequence[Any], via: Via, processes: int | None = None, local: bool = True
) -> Iterator[tuple[int, Any]]:
    """Yield the index and the result of `work` for each item.

    Args:
        work: a picklable function of one item.
        via: as `choose_via` returns it.
        processes: size of the process pool; by default the number of CPUs.
        local: the items are files of this machine, so Ray must run the tasks on it.

    Raises:
        TrainfleetError: a process was killed, most likely because the machine ran out of memory.
    """
    if via == "ray":
        yield from _by_ray(work, items, local)
    elif via == "processes":
        yield from _by_processes(work, items, min(processes or cpus(), len(items)))
    else:
        for number, item in enumerate(items):
            yield number, work(item)


def cpus() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _by_processes(work: Work, items: Sequence[Any], processes: int) -> Iterator[tuple[int, Any]]:
    spawn = multiprocessing.get_context("spawn")  # forking with torch's and Ray's threads is unsafe
    with ProcessPoolExecutor(
        max(1, processes), mp_context=spawn, initializer=_init_worker, initargs=(os.getpid(),)
    ) as pool:
        todo = iter(enumerate(items))
        running: dict[Future[Any], int] = {}
        try:
            while True:
                for number, item in todo:
                    running[pool.submit(work, item)] = number
                    if len(running) >= TASKS_PER_PROCESS * processes:
                        break
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(done), done.result()
        except BrokenProcessPool as error:
            raise TrainfleetError(
                "a data preparation process was killed, most likely out of memory; start again to resume it"
            ) from error
        finally:
            for each in running:
                each.cancel()


def _init_worker(parent: int) -> None:
    """Exit with the parent process, and use one thread: there is one process per CPU."""
    from trainfleet.process import die_with

    die_with(parent)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _ray_has_free_cpu() -> bool:
    # NOTE: under Ray Train the workers may hold all CPUs, and a task would then wait forever
    ray = sys.modules.get("ray")
    return bool(ray is not None and ray.is_initialized() and ray.available_resources().get("CPU", 0) >= 1)


def _by_ray(work: Work, items: Sequence[Any], local: bool) -> Iterator[tuple[int, Any]]:
    """Run a ray.data pipeline of one task per item and stream the results back."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    packed, code = pickle.dumps(work), code_archive.current()

    def do(row: dict[str, Any]) -> dict[str, Any]:
        code_archive.use(*code)  # `work` may be a function of the user's code
        return {"number": row["number"], "result": run_packed(packed, row["item"])}

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
    logging.getLogger("ray.data").setLevel(logging.WARNING)  # hide its plan and progress
    data = ray.data.from_items(rows, override_num_blocks=len(rows)).map(do, num_cpus=1, **here)
    data.context.enable_progress_bars = False
    for row in data.iter_rows():
        yield int(row["number"]), unpacked(row["result"])


def run_packed(work: bytes, item: bytes) -> bytes:
    """What a task returns: the result, or an error that is not a bug, which Ray would wrap."""
    try:
        return pickle.dumps((None, pickle.loads(work)(pickle.loads(item))))
    except (TrainfleetError, OSError) as error:
        return pickle.dumps((error, None))


def unpacked(outcome: bytes) -> Any:
    """The result of `run_packed`.

    Raises:
        TrainfleetError, OSError: the task raised it.
    """
    error, result = pickle.loads(outcome)
    if error is not None:
        raise error
    return result
