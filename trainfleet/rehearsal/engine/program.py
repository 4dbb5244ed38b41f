"""Runs a Pulumi program in its own process: configure the runtime, run `__main__.py`, report failures.

Started as a file by any Python that has `pulumi`. It imports nothing else of this project, so the environment
of an adopter's project is sufficient. A resource transform applies `changes` to single properties, as if the
author had edited the program.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import logging
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

SHOWN = 32
KEPT = ("pulumi", "pydantic")
"""Name prefixes of the packages that stay imported between programs: large, and without global state."""
GARBAGE_AFTER = 200_000
"""Number of allocations between garbage collections (Python's default is 700)."""
ENGINE_ANSWERS_S = 60
SHORTEST_WAIT_S = 30
"""A wait for a cloud; shorter ones are for the program itself."""


def serve() -> None:
    """Run programs one after another, each in a fork that inherits the imported provider SDKs and pydantic.

    Each line on stdin is one run as JSON; each answer is its exit code. The program's own modules are never
    kept, and each run brings its complete environment.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        run = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_in_fork(run))
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        if run["seen"]:
            _import_again(Path(run["seen"]))


def _in_fork(run: dict[str, Any]) -> int:
    os.chdir(run["folder"])
    os.environ.clear()
    os.environ.update(run["environment"])
    output = os.open(run["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    tempfile.tempdir = None  # cached for the previous environment
    try:
        return main(run)
    finally:
        if run["seen"]:
            seen = Path(run["seen"])
            seen.write_text(
                "\n".join(
                    name
                    for name, module in list(sys.modules.items())
                    if _is_kept(name) and not _is_lazy(module)
                )
            )
            seen.with_suffix(".memory").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        sys.stdout.flush()
        sys.stderr.flush()


def _is_kept(name: str) -> bool:
    return name.split(".", maxsplit=1)[0].startswith(KEPT) and not name.startswith("pulumi.dynamic")


def _is_lazy(module: Any) -> bool:
    """Return whether a module is not loaded yet: the SDKs load their modules on first use."""
    return type(module).__name__ == "_LazyModule"


def _import_again(seen: Path) -> None:
    """Import the kept packages that the last program imported, so that the next fork inherits them.

    A package is loaded before its modules: a package that is still lazy would load during the import of its
    module and miss its classes.
    """
    import contextlib
    import importlib

    for name in seen.read_text().split() if seen.is_file() else ():
        if name not in sys.modules or _is_lazy(sys.modules[name]):
            # If a module cannot be imported on its own, the program imports it.
            with contextlib.suppress(Exception):
                # Reading any ordinary attribute loads a lazy module.
                getattr(importlib.import_module(name), "outputs", None)


def main(run: dict[str, Any]) -> int:
    """Run the program and return its exit code."""
    # A program keeps its objects until it ends, so garbage collection finds almost nothing. With an SDK
    # loaded, it took half of the run time.
    gc.freeze()
    gc.set_threshold(GARBAGE_AFTER)
    signal.signal(signal.SIGINT, lambda *_: os._exit(SHOWN))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(SHOWN))
    hooks = configured(run)
    import pulumi
    from pulumi import runtime

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if run["quiet"]:  # each debug message is a call to the engine, and a rehearsal discards them
        pulumi.log.debug = lambda *_, **__: None
    if run.get("waits"):
        note_waits(Path(run["waits"]))
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    program = Path(run["program"])
    sys.argv = [str(program)]
    sys.path[0] = str(program if program.is_dir() else program.parent)

    def program_main() -> None:
        if run["changes"]:
            from pulumi.runtime.stack import register_resource_transform

            register_resource_transform(lambda args: changed(args, run["changes"]))
        runpy.run_path(str(program), run_name="__main__")

    try:
        loop.run_until_complete(runtime.run_in_stack(program_main))
    except pulumi.RunError as error:
        pulumi.log.error(str(error))
        return SHOWN
    except BaseException as error:  # noqa: BLE001 - a program may raise anything, and the user has to see it
        if isinstance(error, SystemExit) and error.code in (0, None):
            return 0
        failure = sibling("program_failure").explain(error, Path(run["settings"]["root_directory"] or "."))
        if isinstance(error, ModuleNotFoundError) and hooks is not None:
            failure["missing"] = ",".join(hooks.missing_packages(program) or [error.name or ""])
        note_failure(run, (hooks and hooks.missing_settings_failure()) or failure)
        pulumi.log.error(
            f"Program failed with an unhandled exception:\n{''.join(traceback.format_exception(error))}"
        )
        return SHOWN
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    if hooks is not None and (failure := hooks.missing_settings_failure()):
        note_failure(run, failure)
        pulumi.log.error("settings are missing")
        return SHOWN
    return 0


def note_failure(run: dict[str, Any], failure: dict[str, str]) -> None:
    """Write why the program failed to where the rehearsal reads it."""
    if file := run.get("failure_file"):
        Path(file).write_text(json.dumps(failure))


def configured(run: dict[str, Any]) -> Any:
    """Isolate this process and configure the Pulumi runtime; return the hooks of a rehearsal, or None."""
    isolation = sibling("isolation") if run.get("isolated") else None
    if isolation is not None:
        isolation.hide_other_processes()
    from pulumi import runtime

    runtime.set_all_config(run["config"], run["secret_keys"])
    runtime.configure(connected(run["settings"]) if isolation else runtime.Settings(**run["settings"]))
    if isolation is not None:
        isolation.without_network()
    hooks = sibling("program_hooks") if run.get("references") else None
    if hooks is not None:
        hooks.collect_missing_settings(Path(run["settings"]["root_directory"] or "."))
        hooks.refer_to_stacks(run["settings"]["project"], Path(run["references"]))
        hooks.name_outputs_of_dynamic_resources()
        hooks.know_ids_of_reads(runtime.settings.SETTINGS.monitor)
    return hooks


def sibling(name: str) -> Any:
    """Load another file of this folder, which is not on the path of the program's environment."""
    file = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_rehearsal_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def connected(settings: dict[str, Any]) -> Any:
    """Return the runtime's settings after their channels to the engine are connected: nothing else may be."""
    import grpc
    from pulumi import runtime

    channels, real = [], grpc.insecure_channel

    def opened(*args: Any, **kwargs: Any) -> Any:
        channels.append(real(*args, **kwargs))
        return channels[-1]

    grpc.insecure_channel = opened
    try:
        made = runtime.Settings(**settings)
    finally:
        grpc.insecure_channel = real
    for channel in channels:
        grpc.channel_ready_future(channel).result(ENGINE_ANSWERS_S)
    return made


def note_waits(file: Path) -> None:
    """Let the program wait at once, and write how many seconds it asked for, one wait a line: the simulated
    cloud reads there which roles are in effect. Short waits stay as they are.
    """
    sleep, block = asyncio.sleep, time.sleep

    def noted(seconds: float) -> float:
        if seconds < SHORTEST_WAIT_S:
            return seconds
        with file.open("a") as lines:
            lines.write(f"{seconds}\n")
        return 0

    async def sleep_at_once(delay: float, result: Any = None) -> Any:
        return await sleep(noted(delay), result)

    asyncio.sleep = sleep_at_once
    time.sleep = lambda seconds: block(noted(float(seconds)))


def changed(args: Any, changes: list[dict[str, Any]]) -> Any:
    """Return the transform's result: the properties with the requested changes, or None if there are none."""
    import pulumi

    matching = [change for change in changes if change["type"] == args.type_ and change["name"] == args.name]
    if not matching:
        return None
    props = dict(args.props)
    for change in matching:
        _set(props, change["path"], change["value"])
    return pulumi.ResourceTransformResult(props, args.opts)


def _set(props: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a nested property; an intermediate output is changed once its value is known."""
    import pulumi

    first, rest = path[0], path[1:]
    if not rest:
        props[first] = value
        return
    inner = props.get(first)
    if isinstance(inner, pulumi.Output):
        props[first] = inner.apply(lambda known: _with(known, rest, value))
    else:
        props[first] = _with(inner, rest, value)


def _with(known: Any, path: list[str], value: Any) -> dict[str, Any]:
    copy = dict(known or {})
    _set(copy, path, value)
    return copy


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve()
    else:
        sys.exit(main(json.loads(os.environ.pop("TRAINFLEET_RUN"))))
