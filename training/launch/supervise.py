"""What every way to start a run shares: its folder, the lock, what the user sees, how it ends, and what is
left to read.

Used by `trainfleet train` and `trainfleet launch`. Easy to get wrong: the launcher must never write into a
folder that another
launch is using, and never remove what a run left: `fresh` moves it aside.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trainfleet import process
from trainfleet.errors import InputError, Interrupted, MissingToolError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.launch import find
from trainfleet.training.launch.platform_outputs import Place
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.stack_outputs import load_stacks
from trainfleet.training.recipe.changes import differences
from trainfleet.training.recipe.load import ENVIRONMENT, dump, load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.recipe.validation import check
from trainfleet.training.runs.reader import last_lines, last_sign, read_recipe, read_rows, read_run
from trainfleet.training.runs.storage import HOME, RunStorage
from trainfleet.training.runtime import events, local_resources, progress
from trainfleet.training.runtime.run_lock import locked, workspace
from trainfleet.training.stores import StoreError

if TYPE_CHECKING:
    from trainfleet.training.launch import Printable

LOG = "launch.log"
"""What the processes of a run wrote to stdout and stderr: Ray's and torch's own words."""


@dataclass
class Outcome:
    """How a launch ended; `document` is what `--json` prints."""

    run_dir: Path
    document: dict[str, Any]
    already_finished: bool = False


@dataclass
class _Heard:
    """What the ranks have said so far."""

    result: dict[str, Any] | None = None
    error: TrainfleetError | None = None
    crashes: list[dict[str, Any]] = field(default_factory=list)
    steps_seen: bool = False
    first_step_s: float | None = None
    last_step: int = 0
    detached: dict[str, Any] | None = None
    """What a launcher that leaves the run alone says of it."""
    moves: list[dict[str, Any]] = field(default_factory=list)
    """Each time that the run came back on other pods: from where to where, in how many seconds."""


def resolve(request: Request, env: Mapping[str, str]) -> tuple[Recipe, tuple[Place, ...]]:
    """The recipe as it will run, and the platforms; the first one's storage is used.

    Raises:
        InputError: every mistake in recipe, overrides, platform.
    """
    places = tuple(load_stacks(request.stacks)) if request.stacks else ()
    overrides = [*request.overrides]
    if request.run is not None:
        overrides.append(f"name={json.dumps(request.run)}")
    if request.storage is not None:
        overrides.append(f"storage={json.dumps(request.storage)}")
    elif places:
        overrides.append(f"storage={json.dumps(places[0].runs_folder())}")
    return load_recipe(request.recipe, overrides, env), places


def show(request: Request, env: Mapping[str, str] | None = None) -> str:
    """What would be handed to the place that `--on` names; nothing is started.

    Raises:
        InputError: what was asked for cannot run there, or runs here and has nothing to show.
    """
    launcher = find(request.on)
    recipe, places = resolve(request, os.environ if env is None else env)
    if not hasattr(launcher, "render"):
        raise InputError(
            "nothing to print",
            [Problem("--print", f"`--on {request.on}` runs on this machine", "leave out --print")],
        )
    return cast("Printable", launcher).render(recipe, Target(request, places, recipe.run_dir().absolute()))


def start(
    request: Request, env: Mapping[str, str] | None = None, view: progress.Display | None = None
) -> Outcome:
    """Run a recipe to its end, from where an earlier launch left it; `view` hears what its ranks say instead
    of the terminal.

    Raises:
        InputError: what was asked for cannot run here; nothing has been started.
        TrainfleetError: the run failed; its newest checkpoint stays.
        Interrupted: a signal ended it after a checkpoint where there was time for one.
    """
    env = os.environ if env is None else env
    launcher = find(request.on)
    recipe, places = resolve(request, env)
    afar = bool(getattr(launcher, "AFAR", False))
    if not afar:
        _need_torch(request.on)
    run_dir = recipe.run_dir().absolute()
    target = Target(request, places, run_dir)
    launcher.check(recipe, target)
    storage = RunStorage(recipe, run_dir, lambda *_: None)
    with locked(run_dir, fresh=request.fresh):
        if request.fresh:
            storage.refuse_to_bury()
        storage.fetch()
        before = read_run(run_dir)
        if _is_finished(before, recipe):
            _require_same(run_dir, recipe, request.allow_changes)
            return Outcome(run_dir, _document(run_dir, before.get("result", {}), 0.0), already_finished=True)
        launches = _begin(run_dir, before, request, recipe, target.place)
        began = time.monotonic()
        view = view or progress.display(request.json)
        heard = _Heard()
        try:
            with workspace() as work:
                ended = _supervise(
                    launcher.command(recipe, work / "recipe.yaml", target),
                    (recipe, run_dir),
                    work,
                    (heard, view),
                    {**env, events.ALLOW_CHANGES: ",".join(request.allow_changes)},
                    grace_s=float(getattr(launcher, "GRACE_S", 20.0)),
                    afar=afar,
                )
        finally:
            view.close()
        if heard.detached is not None:
            launches[-1] |= {"status": "detached", **heard.detached}
            _note(run_dir, {"launches": launches})
            return Outcome(run_dir, {"run": str(run_dir), "status": "detached", **heard.detached})
        seconds = time.monotonic() - began
        status = _status(ended, heard)
        if afar:
            with contextlib.suppress(StoreError) if status != "finished" else contextlib.nullcontext():
                storage.fetch()
        launches[-1] |= {
            "seconds": round(seconds, 3),
            "status": status,
            "first_step_seconds": heard.first_step_s,
            "last_step": heard.last_step,
        }
        if heard.moves:
            launches[-1]["moves"] = heard.moves
        if heard.error is not None or heard.crashes:
            launches[-1]["error"] = str(heard.error.summary if heard.error else heard.crashes[0]["error"])
        facts: dict[str, Any] = {"launches": launches}
        if heard.result is not None:
            facts["result"] = heard.result
        _note(run_dir, facts)
        _write_report(run_dir)
        if (
            not afar or heard.steps_seen or heard.result is not None
        ):  # else the store may hold another launch's news of this run
            with contextlib.suppress(StoreError) if status != "finished" else contextlib.nullcontext():
                storage.send()
        _raise_for(status, heard, run_dir, ended)
        return Outcome(run_dir, _document(run_dir, heard.result or {}, seconds))


def _supervise(
    command: list[str],
    run: tuple[Recipe, Path],
    work: Path,
    ears: tuple[_Heard, progress.Display],
    env: Mapping[str, str],
    *,
    grace_s: float,
    afar: bool,
) -> process.Ended:
    """Start the command, show what its ranks say, and end it at their first error that the user can mend."""
    heard, view = ears
    recipe, run_dir = run
    (work / "recipe.yaml").write_text(dump(recipe), encoding="utf-8")
    listener = events.Listener(work / "events")
    began = time.monotonic()

    def tick() -> None:
        for event in listener.drain():
            _hear(event, heard, time.monotonic() - began)
            view.handle(event)
        if heard.error is not None:
            raise _EndNow

    def ask_to_stop() -> bool:
        if not heard.steps_seen and not afar:
            return False
        (work / "stop").touch()
        what = "saving a checkpoint first" if heard.steps_seen else "taking down what was started"
        view.handle({"kind": "warning", "text": f"stopping: {what} (Ctrl-C again ends at once)"})
        return True

    try:
        with (run_dir / LOG).open("ab") as log:
            return process.supervise(
                command,
                _child_env(env, recipe, run_dir, work),
                log,
                tick=tick,
                ask_to_stop=ask_to_stop,
                grace_s=grace_s,
            )
    except _EndNow:
        return process.Ended(None, None)
    finally:
        listener.close()
        for event in listener.drain():
            _hear(event, heard, time.monotonic() - began)
            view.handle(event)


class _EndNow(Exception):  # noqa: N818 - ends the supervision, never leaves this file
    pass


def _hear(event: dict[str, Any], heard: _Heard, seconds: float) -> None:
    match event["kind"]:
        case "step":
            if heard.first_step_s is None:
                heard.first_step_s = round(seconds, 3)
            heard.steps_seen, heard.last_step = True, event["step"]
        case "result":
            heard.result = {key: value for key, value in event.items() if key != "kind"}
        case "error" if heard.error is None:
            heard.error = error_from(event)
        case "crash":
            heard.crashes.append(event)
        case "moved":
            heard.moves.append({key: value for key, value in event.items() if key != "kind"})
        case "detached":
            heard.detached = {key: value for key, value in event.items() if key != "kind"}


def error_from(event: Mapping[str, Any]) -> TrainfleetError:
    """The error that a worker told of."""
    kind = {InputError.exit_code: InputError, MissingToolError.exit_code: MissingToolError}.get(
        event["exit_code"], TrainfleetError
    )
    return kind(event["summary"], [Problem(*problem) for problem in event["problems"]])


def _status(ended: process.Ended, heard: _Heard) -> str:
    if heard.result is not None and (ended.code == 0 or heard.result["status"] == "finished"):
        return str(heard.result["status"])
    return "interrupted" if ended.signal is not None else "failed"


def _raise_for(status: str, heard: _Heard, run_dir: Path, ended: process.Ended) -> None:
    again = "run the same command again to go on"
    if status == "finished":
        return
    if status == "stopped":
        raise Interrupted(
            f"stopped after step {heard.result['step'] if heard.result else heard.last_step}, which is saved; {again}"
        )
    if status == "interrupted":
        raise Interrupted(f"interrupted; what was saved before is in {run_dir}; {again}")
    if heard.error is not None:
        raise heard.error
    said = (
        heard.crashes[0]["error"]
        if heard.crashes
        else next(iter(last_lines(run_dir / LOG)), f"exit code {ended.code}")
    )
    raise TrainfleetError(
        f"the run failed: {said}", [Problem(str(run_dir / LOG), "has the whole story", again)]
    )


def _begin(
    run_dir: Path, before: Mapping[str, Any], request: Request, recipe: Recipe, place: Place | None
) -> list[dict[str, Any]]:
    """Note this launch in run.json; one before it that never noted its end was killed."""
    launches = [dict(each) for each in before.get("launches", [])]
    if launches and "status" not in launches[-1]:
        launches[-1] |= {"status": "killed"} | (
            {} if (run_dir / HOME).exists() else _until_killed(run_dir, launches[-1])
        )
    launch: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "on": request.on,
        "recipe": request.recipe,
        "workers": recipe.scaling.workers,
        "machine": local_resources.describe(),
    }
    if place is not None:
        launch["platform"] = place.facts()
    # Where `trainfleet runs` finds it again without being told.
    launch |= {
        key: each
        for key, each in (
            ("context", request.context),
            ("namespace", request.namespace),
            ("stacks", [*request.stacks]),
        )
        if each
    }
    launches.append(launch)
    _note(run_dir, {"launches": launches})
    return launches


def _until_killed(run_dir: Path, launch: Mapping[str, Any]) -> dict[str, Any]:
    """How long a killed launch lasted and how far it came, by when it last wrote here: for the report of the
    time that was lost.
    """
    seen, began = last_sign(run_dir), str(launch.get("at", ""))
    try:
        lasted = max(0.0, (seen or 0.0) - datetime.fromisoformat(began).timestamp())
    except ValueError:
        return {}
    steps = [row["step"] for row in read_rows(run_dir).of("train")]
    return {"seconds": round(lasted, 3), "last_step": max(steps, default=0)}


def _note(run_dir: Path, facts: Mapping[str, Any]) -> None:
    with contextlib.suppress(InputError) if "result" in facts else contextlib.nullcontext():
        write_whole(run_dir / "run.json", json.dumps(read_run(run_dir) | dict(facts), indent=1))


def _write_report(run_dir: Path) -> None:
    """The report beside the run; a full disk must not hide how the run itself ended."""
    from trainfleet.training.report import write_report

    with contextlib.suppress(InputError):
        write_report(run_dir, run_dir / "report.html")


def _document(run_dir: Path, result: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    report = run_dir / "report.html"
    return {
        "run": str(run_dir),
        "status": result.get("status", "finished"),
        "step": result.get("step"),
        "resumed_from": result.get("resumed_from"),
        "checkpoint": result.get("checkpoint"),
        "metrics": result.get("metrics", {}),
        "baseline": result.get("baseline", {}),
        "losses": [[row["step"], row["loss"]] for row in read_rows(run_dir).of("train")],
        "seconds": round(seconds, 3),
        "report": str(report) if report.exists() else None,
    }


def _is_finished(before: Mapping[str, Any], recipe: Recipe) -> bool:
    """Whether the run needs no more steps; a recipe that now asks for more goes on (the loop judges whether
    it may).
    """
    done = max(
        before.get("result", {}).get("step", 0), before.get("asked", 0)
    )  # a batch that grew needs fewer steps than were asked for
    return before.get("status") == "finished" and (recipe.steps is None or done >= recipe.steps)


def _require_same(run_dir: Path, recipe: Recipe, allowed: tuple[str, ...]) -> None:
    """A finished run answers for its own recipe alone: with another one, "nothing to do" would be taken for
    its result.

    Raises:
        InputError: keys differ that decide what is trained.
    """
    found = check(read_recipe(run_dir))[0]
    changed = (
        []
        if found is None
        else differences(
            found.model_dump(mode="json"), recipe.model_dump(mode="json"), (*allowed, "steps", "epochs")
        )
    )
    if changed:
        fix = "put it back, or train it with --run NAME, or with --fresh"
        problems = [Problem(key, f"was {old}, is now {new}", fix) for key, old, new in changed]
        raise InputError(f"{run_dir} is finished, and was trained with another recipe", problems)


def _child_env(env: Mapping[str, str], recipe: Recipe, run_dir: Path, work: Path) -> dict[str, str]:
    """The environment of a run's processes: the recipe's own variables are already in the resolved recipe, so
    they are taken out.
    """
    own = {
        key
        for key in env
        if key.startswith(ENVIRONMENT)
        and ("__" in key or key.removeprefix(ENVIRONMENT).lower() in Recipe.model_fields)
    }
    return {
        key: value
        for key, value in env.items()
        if key not in own and key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    } | {
        events.EVENTS: str(work / "events"),
        events.RUN_DIR: str(run_dir),
        events.STOP_FILE: str(work / "stop"),
        events.RAY_TEMP: str(work / "ray"),
        events.PARENT: str(os.getpid()),
        events.LAUNCH: secrets.token_hex(8),
        "OMP_NUM_THREADS": str(recipe.scaling.threads),
        "PYTHONUNBUFFERED": "1",
    }


def _need_torch(on: str) -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", *(["ray"] if on == "local" else [])) if find_spec(name) is None]
    if missing:
        raise MissingToolError(
            f"{' and '.join(missing)} is not installed here",
            [Problem("", "training needs it", "pip install 'trainfleet[train]'")],
        )
