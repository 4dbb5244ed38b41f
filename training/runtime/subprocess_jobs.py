"""Runs a command's work in separate processes of this machine: one process, or the ranks of a process group.

A job is a function `work(job, send)` of plain values that returns plain values. With ranks, rank 0's result
counts. An error that a job raises reaches the caller unchanged.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from trainfleet import process
from trainfleet.errors import InputError, Interrupted, MissingToolError, Problem, TrainfleetError
from trainfleet.training.runs.reader import last_lines
from trainfleet.training.runtime import events
from trainfleet.workspace import workspace

Send = Callable[..., Any]
"""`send(kind, **fields)`: an event for the process that started the job."""
Hear = Callable[[Mapping[str, Any]], Any]
MODULE = "trainfleet.training.runtime.subprocess_jobs"
RANKS = "--ranks"
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOG_LINES = 8


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
    """Run `module:function` in one process, or on `ranks` processes, and return its result.

    Args:
        function: `module:name` of `work(job, send)`.
        job: its argument; must survive JSON.
        hear: called here with each event that it sends.
        ranks: how many processes of a process group; None for one without.
        threads: CPU threads of each.
        grace_s: how long it may take to end once it is asked to stop; 0 ends it at once.
        log: where the processes' output goes; by default kept only until the job has ended.
        again: shown to the user when the job was interrupted.

    Raises:
        TrainfleetError: what the job raised, or that it exited unexpectedly, with its last log lines.
        Interrupted: Ctrl-C or SIGTERM ended it.
    """
    with workspace() as work:
        (work / "job.json").write_text(json.dumps({"function": function, "job": job}), encoding="utf-8")
        listener = events.Listener(work / "events")
        results: list[Any] = []
        crashes: list[str] = []

        def tick() -> None:
            for event in listener.drain():
                _handle(event, hear, results, crashes)

        def on_signal(signals: Sequence[int]) -> process.Reaction:  # noqa: ARG001
            (work / "stop").touch()
            return process.Reaction.END_SOON if grace_s > 0 else process.Reaction.END_NOW

        output = log or work / "log"
        try:
            with _opened(output) as file:
                ended = process.supervise(
                    _command(work / "job.json", ranks),
                    _environment(work, threads),
                    file,
                    tick=tick,
                    on_signal=on_signal,
                    grace_s=grace_s,
                )
        finally:
            listener.close()
        tick()
        if results and ended.code == 0:
            return results[0]
        if ended.signal is not None:
            raise Interrupted(f"interrupted; {again}" if again else "interrupted")
        raise _unexpected_exit(crashes[0] if crashes else f"exit code {ended.code}", output)


def _handle(event: Mapping[str, Any], hear: Hear, results: list[Any], crashes: list[str]) -> None:
    """Store a result or a crash, raise an error that the job reported, and pass other events to `hear`."""
    match event["kind"]:
        case "result":
            results.append(event["value"])
        case "error":
            raise error_from(event)
        case "crash":
            crashes.append(event["error"])
        case _:
            hear(event)


def stopping() -> bool:
    """Whether this job was asked to stop; for use inside a job."""
    return os.path.exists(os.environ.get(events.STOP_FILE) or "")  # noqa: PTH110 - asked often


def error_from(event: Mapping[str, Any]) -> TrainfleetError:
    """The error that a process reported as an `error` event."""
    kinds: dict[int, type[TrainfleetError]] = {
        each.exit_code: each for each in (InputError, MissingToolError)
    }
    kind = kinds.get(event["exit_code"], TrainfleetError)
    return kind(event["summary"], [Problem(*problem) for problem in event["problems"]])


def send_error(sink: events.EventSink, error: TrainfleetError) -> int:
    """Report an error as an event, which the launcher shows as its own; returns the exit code."""
    problems = [[each.where, each.what, each.fix] for each in error.problems]
    sink.send("error", summary=error.summary, problems=problems, exit_code=error.exit_code)
    return error.exit_code


def _unexpected_exit(reason: str, log: Path) -> TrainfleetError:
    lines = [line for line, _ in zip(last_lines(log), range(_LOG_LINES), strict=False)]
    problems = [Problem("last log lines", line) for line in reversed(lines)]
    return TrainfleetError(f"the worker process exited unexpectedly: {reason}", problems)


def _opened(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def _command(file: Path, ranks: int | None) -> list[str]:
    group = [] if ranks is None else [RANKS, str(ranks)]
    return [sys.executable, "-m", MODULE, *group, str(file)]


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
    """Entry point of the job's process, or of the agent that starts its ranks: `[--ranks N] FILE`."""
    if events.PARENT in os.environ:
        process.die_with(int(os.environ[events.PARENT]))
    if sys.argv[1] == RANKS:
        return _start_ranks(sys.argv[2], sys.argv[3])
    sink = events.EventSink(os.environ.get(events.EVENTS))
    first = os.environ.get("RANK", "0") == "0"
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    module, _, name = document["function"].partition(":")
    try:
        result = getattr(importlib.import_module(module), name)(document["job"], sink.send)
        if first:
            sink.send("result", value=result)
    except TrainfleetError as error:
        return send_error(sink, error)
    except Exception as error:
        sink.send("crash", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        raise
    finally:
        with contextlib.suppress(OSError):
            sink.close()
    return 0


def _start_ranks(ranks: str, file: str) -> int:
    from torch.distributed.run import main as torchrun

    torchrun(["--standalone", f"--nproc-per-node={ranks}", "--max-restarts=0", "--module", MODULE, file])
    return 0


if __name__ == "__main__":
    sys.exit(main())
