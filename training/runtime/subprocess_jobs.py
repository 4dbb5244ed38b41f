"""A command's work in processes of its own on this machine: one, or ranks under torch's agent; heard, ended,
nothing left behind.

Used by evaluate, predict, serve and tune. A job is a function `work(job, send)` of plain values that returns
plain values; under
ranks the first one's result counts. Easy to get wrong: what a job raises must reach the user as it was
raised, and a job that is
asked to stop (`stopping`) may first finish what it is at.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from trainfleet import process
from trainfleet.errors import Interrupted, Problem, TrainfleetError
from trainfleet.training.launch.supervise import error_from
from trainfleet.training.runs.reader import last_lines
from trainfleet.training.runtime import events
from trainfleet.training.runtime.run_lock import workspace

Send = Callable[..., Any]
"""`send(kind, **fields)`: an event for whoever started the job."""
Hear = Callable[[Mapping[str, Any]], Any]
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run(
    function: str,
    job: Mapping[str, Any],
    *,
    hear: Hear,
    ranks: int | None = None,
    threads: int = 1,
    grace_s: float = 0.0,
    log: Path | None = None,
    again: str = "",
) -> Any:
    """Do `module:function` in a process of its own, or on `ranks` of them, and return what it returns.

    Args:
        function: `module:name` of `work(job, send)`.
        job: what it is called with; must survive JSON.
        hear: called here with each event that it sends.
        ranks: how many processes of a process group; None for one without.
        threads: CPU threads of each.
        grace_s: how long it may take to end once it is asked to stop; 0 ends it at once.
        log: where the processes' own words go; by default kept only until the job has ended.
        again: what the user is told when it was interrupted.

    Raises:
        TrainfleetError: what the job raised, or that it broke, with its last words.
        Interrupted: Ctrl-C or SIGTERM ended it.
    """
    with workspace() as work:
        (work / "job.json").write_text(json.dumps({"function": function, "job": job}), encoding="utf-8")
        listener = events.Listener(work / "events")
        results: list[Any] = []
        crashes: list[str] = []

        def tick() -> None:
            for event in listener.drain():
                match event["kind"]:
                    case "result":
                        results.append(event["value"])
                    case "error":
                        raise error_from(event)
                    case "crash":
                        crashes.append(event["error"])
                    case _:
                        hear(event)

        def ask_to_stop() -> bool:
            (work / "stop").touch()
            return grace_s > 0

        words = log or work / "log"
        try:
            with _opened(words) as file:
                ended = process.supervise(
                    _command(work / "job.json", ranks),
                    _environment(work, threads),
                    file,
                    tick=tick,
                    ask_to_stop=ask_to_stop,
                    grace_s=grace_s,
                )
        finally:
            listener.close()
        tick()
        if results and ended.code == 0:
            return results[0]
        if ended.signal is not None:
            raise Interrupted(f"interrupted; {again}" if again else "interrupted")
        said = crashes[0] if crashes else f"exit code {ended.code}"
        tail = [line for line, _ in zip(last_lines(words), range(8), strict=False)]
        raise TrainfleetError(
            f"the work broke off: {said}", [Problem("its last words", line) for line in reversed(tail)]
        )


def stopping() -> bool:
    """Whether this job was asked to stop; asked inside a job."""
    return os.path.exists(os.environ.get(events.STOP_FILE) or "")  # noqa: PTH110 - asked often


def _opened(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def _command(file: Path, ranks: int | None) -> list[str]:
    if ranks is None:
        return [sys.executable, "-m", "trainfleet.training.runtime.subprocess_jobs", str(file)]
    agent = [
        "--standalone",
        f"--nproc-per-node={ranks}",
        "--max-restarts=0",
        "--module",
        "trainfleet.training.runtime.subprocess_jobs",
    ]
    return [sys.executable, "-m", "trainfleet.training.launch.torchrun", *agent, str(file)]


def _environment(work: Path, threads: int) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in _TORCHRUN} | {
        events.EVENTS: str(work / "events"),
        events.STOP_FILE: str(work / "stop"),
        events.RAY_TEMP: str(work / "ray"),
        events.PARENT: str(os.getpid()),
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
    }


def main() -> int:
    """The job's own process: do it and tell how it ended."""
    if events.PARENT in os.environ:
        process.die_with(int(os.environ[events.PARENT]))
    sink = events.Sink(os.environ.get(events.EVENTS))
    first = os.environ.get("RANK", "0") == "0"
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    module, _, name = document["function"].partition(":")
    try:
        result = getattr(importlib.import_module(module), name)(document["job"], sink.send)
        if first:
            sink.send("result", value=result)
    except TrainfleetError as error:
        sink.send(
            "error",
            summary=error.summary,
            problems=[[each.where, each.what, each.fix] for each in error.problems],
            exit_code=error.exit_code,
        )
        return error.exit_code
    except Exception as error:
        sink.send("crash", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        raise
    finally:
        with contextlib.suppress(OSError):
            sink.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
