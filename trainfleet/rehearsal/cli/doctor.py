"""`trainfleet doctor`: what is on this machine, what is missing, and which command it is missing for.

Used by people before anything else works, so it imports nothing heavy, asks other programs with a time limit
only, and no
check may raise. Easy to get wrong: a package is looked for without importing it (torch alone would take
seconds), and a
missing engine is no fault where it can be built.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import typer

from trainfleet.console import EXTRAS, out, print_json
from trainfleet.errors import MissingToolError

Status = Literal["here", "scarce", "missing"]
GIB = 1 << 30
OLDEST, NEWEST = (3, 11), (3, 13)
EVERY = ("spec", "machines", "rehearse", "train", "launch", "report")
TRAINING = ("train", "launch")
WORKED_FOR = ("rehearse", "train")
"""The commands that have to work for exit code 0: the two halves of the house."""
SHOWN = {"aws": ("pulumi", "pulumi-aws", "pulumi-kubernetes"), "train": ("torch", "ray")}
"""The distributions of an extra whose versions are worth a look."""
NEEDED_BY = {"aws": ("rehearse",), "train": ("train", "launch", "report")}
SECONDS = 20.0
COLOURS = {"here": "green", "scarce": "yellow", "missing": "red"}


@dataclass(frozen=True)
class Check:
    """One thing looked at. `commands` use it; they work without it unless it is `needed`; `fix` says how to
    get it.
    """

    name: str
    status: Status
    detail: str
    commands: tuple[str, ...]
    needed: bool = True
    fix: str = ""


def examine() -> list[Check]:
    """Look at everything, in the order in which a newcomer meets it."""
    from trainfleet.rehearsal.engine.build import cache_folder

    return [
        python(),
        *(extra(name) for name in NEEDED_BY),
        engine(),
        cpus(),
        memory(),
        shared_memory(),
        space("disk for the engine", cache_folder(), 3 * GIB, ("rehearse",)),
        space("disk for runs", Path.cwd(), 2 * GIB, TRAINING),
        gpu(),
        program("git", "--version", "to contribute"),
        program("kubectl", "version --client", "to look into a cluster"),
        program("helm", "version --short", "to look into a chart"),
    ]


def ready(checks: Iterable[Check]) -> dict[str, bool]:
    """Say of each command whether it can work here."""
    lacking = {
        command
        for check in checks
        if check.needed and check.status == "missing"
        for command in check.commands
    }
    return {command: command not in lacking for command in EVERY}


def python() -> Check:
    """The Python that runs this."""
    version, span = sys.version_info[:2], f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    detail = f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]} in {sys.prefix}"
    if OLDEST <= version <= NEWEST:
        return Check("Python", "here", detail, EVERY)
    return Check(
        "Python",
        "missing",
        detail,
        EVERY,
        fix=f"install Python {span}, then `make setup PYTHON=python{NEWEST[0]}.{NEWEST[1]}`",
    )


def extra(name: str) -> Check:
    """The packages of one extra, found without importing them."""
    modules = sorted(module for module, of in EXTRAS.items() if of == name)
    absent = [module for module in modules if not installed_module(module)]
    if absent:
        detail = f"not here: {', '.join(absent)}"
        return Check(
            f"extra `{name}`",
            "missing",
            detail,
            NEEDED_BY[name],
            fix=f"pip install 'trainfleet[{name}]', in a checkout `make setup`",
        )
    return Check(
        f"extra `{name}`",
        "here",
        ", ".join(f"{package} {version_of(package)}" for package in SHOWN[name]),
        NEEDED_BY[name],
    )


def installed_module(module: str) -> bool:
    """Say whether a module could be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def version_of(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def engine() -> Check:
    """The Pulumi engine: the one named, the user's own, one built before, or the means to build one."""
    from trainfleet.rehearsal.engine.build import cache_folder, key, pinned
    from trainfleet.rehearsal.engine.find import find_engine, installed

    if os.environ.get("TRAINFLEET_PULUMI"):
        try:
            named = find_engine()
        except MissingToolError as error:
            return Check(
                "Pulumi engine", "missing", str(error.problems[0]), ("rehearse",), fix=error.problems[0].fix
            )
        return Check(
            "Pulumi engine",
            "here",
            f"{named.version} at {named.path}, named by TRAINFLEET_PULUMI",
            ("rehearse",),
        )
    if (own := installed()) is not None:
        return Check("Pulumi engine", "here", f"{own.version} at {own.path}", ("rehearse",))
    built = cache_folder() / f"engine-{key()}" / "bin" / "pulumi"
    if built.is_file():
        return Check(
            "Pulumi engine",
            "here",
            f"{pinned('github.com/pulumi/pulumi/pkg/v3')}, built before, at {built}",
            ("rehearse",),
        )
    return means_to_build(pinned("go"))


def means_to_build(wanted: str) -> Check:
    """What an engine could be built with where there is none."""
    old = (
        "the `pulumi` on PATH is older than 3.200 or does not answer; "
        if shutil.which("pulumi")
        else "no `pulumi` on PATH; "
    )
    if go := usable_go(wanted):
        return Check(
            "Pulumi engine",
            "here",
            f"{old}the first rehearsal builds one with {go}, in about 3 minutes",
            ("rehearse",),
        )
    fix = f"install Pulumi 3.200 or newer, or Go {wanted} or newer"
    if installed_module("pip"):
        detail = f"{old}the first rehearsal fetches Go with pip, if it reaches an index, and builds one"
        return Check("Pulumi engine", "scarce", detail, ("rehearse",), fix=fix)
    return Check(
        "Pulumi engine",
        "missing",
        f"{old}no Go {wanted} to build one with, and no pip to fetch Go with",
        ("rehearse",),
        fix=fix,
    )


def usable_go(wanted: str) -> str:
    """Return the Go on PATH if it is new enough."""
    go = shutil.which("go")
    match = re.search(r"go(\d+)\.(\d+)(?:\.(\d+))?", answer([go, "version"])) if go else None
    numbers = tuple(int(number or 0) for number in match.groups()) if match else ()
    return go if go and numbers >= tuple(map(int, wanted.split("."))) else ""


def cpus() -> Check:
    """The CPUs this process may use, which in a container can be fewer than the machine has."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count >= 2:
        return Check("CPUs", "here", str(count), TRAINING, needed=False)
    return Check(
        "CPUs",
        "scarce",
        str(count),
        TRAINING,
        needed=False,
        fix="train with `scaling.workers=1`, or on a machine with 2 CPUs",
    )


def memory() -> Check:
    """Memory that is free for a run of two workers and Ray."""
    import psutil

    free, total = psutil.virtual_memory().available, psutil.virtual_memory().total
    detail = f"{free / GIB:.1f} GiB free of {total / GIB:.1f}"
    return Check(
        "memory",
        "here" if free >= 4 * GIB else "scarce",
        detail,
        TRAINING,
        needed=False,
        fix="" if free >= 4 * GIB else "4 GiB free",
    )


def shared_memory(folder: Path = Path("/dev/shm")) -> Check:
    """Where Ray keeps its objects; too small a one makes it use the disk."""
    commands, fix = ("train",), "in a container `--shm-size=2g`; without it Ray keeps its objects on disk"
    if not folder.is_dir():
        return Check("shared memory", "scarce", f"no {folder}", commands, needed=False, fix=fix)
    total = shutil.disk_usage(folder).total
    if total >= GIB:
        return Check("shared memory", "here", f"{total / GIB:.1f} GiB in {folder}", commands, needed=False)
    return Check(
        "shared memory", "scarce", f"{total / GIB:.2f} GiB in {folder}", commands, needed=False, fix=fix
    )


def space(name: str, folder: Path, wanted: int, commands: tuple[str, ...]) -> Check:
    """Free space where something will be written; the folder itself may not be there yet."""
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        return Check(
            name,
            "scarce",
            f"{folder} cannot be written",
            commands,
            needed=False,
            fix="choose a folder of your own",
        )
    if free < wanted:
        return Check(
            name,
            "scarce",
            f"{free / GIB:.1f} GiB free in {folder}",
            commands,
            needed=False,
            fix=f"{wanted / GIB:.0f} GiB free",
        )
    return Check(name, "here", f"{free / GIB:.1f} GiB free in {folder}", commands, needed=False)


def gpu() -> Check:
    """NVIDIA GPUs as their driver lists them; training works without."""
    listed = answer(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    cards = [line.strip() for line in listed.splitlines() if line.count(",") == 2]
    if cards:
        return Check("GPU", "here", "; ".join(cards), TRAINING, needed=False)
    return Check("GPU", "missing", "none that nvidia-smi lists; runs use the CPU", TRAINING, needed=False)


def program(name: str, arguments: str, purpose: str) -> Check:
    """A program that no command needs."""
    path = shutil.which(name)
    if path is None:
        return Check(name, "missing", f"only {purpose}", (), needed=False)
    said = answer([path, *arguments.split()]).strip().splitlines()
    return Check(name, "here", said[0] if said else path, (), needed=False)


def answer(command: list[str]) -> str:
    """Return what a program says; nothing when it is not there, fails or does not answer in time."""
    try:
        finished = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return finished.stdout if finished.returncode == 0 else ""


doctor = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@doctor.command()
def show(json: bool = typer.Option(False, "--json", help="Write one JSON document to stdout.")) -> None:
    """Say what is here, and what is missing for which command.

    Exit code 0 when `rehearse` and `train` can work, 3 otherwise.

    [bold]Examples[/]

    \b
      trainfleet doctor
      trainfleet doctor --json | jq .ready
    """
    checks = examine()
    works = ready(checks)
    (print_json if json else print_table)({"ready": works, "checks": [asdict(check) for check in checks]})
    if not all(works[command] for command in WORKED_FOR):
        raise typer.Exit(3)


def print_table(report: dict[str, Any]) -> None:
    """Write the report for a person: a table, then a line per command that cannot work."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, wraps in (("", False), ("what", False), ("found", True), ("for", False)):
        table.add_column(column, no_wrap=not wraps, overflow="fold")
    for check in report["checks"]:
        status = check["status"] if check["needed"] or check["status"] != "missing" else "absent"
        found = escape(check["detail"]) + (f" [cyan]-> {escape(check['fix'])}[/]" if check["fix"] else "")
        commands = "everything" if check["commands"] == EVERY else ", ".join(check["commands"])
        table.add_row(f"[{COLOURS.get(status, 'dim')}]{status}[/]", check["name"], found, commands)
    console = out()
    console.print(table)
    working = [command for command, works in report["ready"].items() if works]
    console.print(f"\ncan work here: [green]{', '.join(working) or 'nothing'}[/]")
    if broken := [command for command, works in report["ready"].items() if not works]:
        console.print(f"cannot work yet: [red]{', '.join(broken)}[/]")
