"""How `evaluate --on` and `predict --on` launch: a run whose ranks do a job, by the launchers of `launch`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from trainfleet.training.launch.request import Request
    from trainfleet.training.launch.supervise import Outcome

NEED_ON = "is an option of `--on`"
MAX_NAME = 63


@dataclass(frozen=True)
class LaunchArguments:
    """Where a job is launched; see `launch.request.Request`."""

    on: str
    workers: int
    stacks: tuple[str, ...] = ()
    storage: str | None = None
    code: str | None = None
    json: bool = False

    def request(self, recipe: Path, options: Any, job: str) -> Request:
        """The request of a launch that runs a job in place of a training."""
        from trainfleet.training.launch.request import Request

        return Request(
            str(recipe),
            on=self.on,
            storage=self.storage,
            stacks=self.stacks,
            json=self.json,
            options=options,
            job=job,
            code=self.code,
        )


def require_no_launch_options(ctx: typer.Context, own: Sequence[str]) -> None:
    """Reject the options of launchers in a command that launches nothing. `own`: its other parameters.

    Raises:
        InputError: names each of them.
    """
    from trainfleet.errors import InputError, Problem

    given = [
        (each, source)
        for each in ctx.command.params
        if each.name not in own and (source := ctx.get_parameter_source(str(each.name))) is not None
    ]
    problems = [
        Problem(each.opts[0], NEED_ON, "add --on LAUNCHER, or leave it out")
        for each, source in given
        if not source.name.startswith("DEFAULT")
    ]
    if problems:
        raise InputError("options without a launcher", problems)


def launch_job(
    ctx: typer.Context,
    where: LaunchArguments,
    task: str,
    arguments: dict[str, Any],
    *,
    own: Sequence[str],
    urls: Mapping[str, str],
) -> tuple[Outcome, dict[str, Any]]:
    """Launch a job and follow it to its end; returns the outcome, and the result that its ranks reported.

    Args:
        ctx: of the command, with the launchers' options.
        where: the launcher and the number of ranks.
        task, arguments: see `inference.job.Job`; `source` and `which` name the model.
        own: the command's other parameters.
        urls: by option, what other machines must be able to read or write.

    Raises:
        InputError: options of another launcher, a model or input on this machine for ranks on others, or what
            `launch` rejects.
        TrainfleetError: the job failed.
    """
    import yaml

    from trainfleet.training.cli.launch import given_options
    from trainfleet.training.inference.job import Job, recipe_document
    from trainfleet.training.inference.loaded import run_of, stored_recipe
    from trainfleet.training.launch import code
    from trainfleet.training.launch.base import find, parse_options
    from trainfleet.training.launch.supervise import start
    from trainfleet.training.runs.reader import read_run
    from trainfleet.training.stores import is_remote
    from trainfleet.workspace import workspace

    given = {name: value for name, value in given_options(ctx).items() if name not in own}
    options = parse_options(where.on, given)
    launcher = find(where.on)
    if launcher.remote:
        _require_urls(where.on, urls)
    if where.code is not None:
        code.import_first(code.folder_of(where.code, "", ()))  # the recipe is validated by its workload
    recipe, checkpoint = stored_recipe(arguments["source"], arguments["which"])
    if not is_remote(checkpoint):
        checkpoint = str(Path(checkpoint).absolute())
    parent = run_of(checkpoint).rpartition("/")[0] or "."
    job = Job.model_validate(
        {"task": task, "arguments": arguments | {"source": checkpoint, "which": "newest"}}
    )
    ending = f"-{task}-{secrets.token_hex(4)}"
    name = f"{recipe.name[: MAX_NAME - len(ending)]}{ending}"
    storage = where.storage if where.storage is not None else None if where.stacks else parent
    with workspace() as folder:
        file = folder / "recipe.yaml"
        document = recipe_document(recipe, name, where.workers, storage)
        document["pod_template"] = {role: document["pod_template"][role] for role in launcher.pod_roles}
        file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        outcome = start(where.request(file, options, job.model_dump_json()))
    return outcome, dict(read_run(outcome.run_dir).get("result", {}))


def _require_urls(on: str, urls: Mapping[str, str]) -> None:
    """Raises:
    InputError: other machines cannot open one of these.
    """
    from trainfleet.errors import InputError, Problem
    from trainfleet.training.stores import is_remote

    problems = [
        Problem(
            option, f"`{value}` is on this machine, and --on {on} runs on others", "a URL of an object store"
        )
        for option, value in urls.items()
        if not is_remote(value) and not value.startswith("hf:")
    ]
    if problems:
        raise InputError("other machines cannot read this", problems)


def detached_lines(outcome: Outcome) -> list[str] | None:
    """How to follow a job that was detached; None if it has ended."""
    if outcome.document.get("status") != "detached":
        return None
    return [str(line) for line in outcome.document.get("how", [])]
