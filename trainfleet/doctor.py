"""`trainfleet doctor`: what is installed on this machine, what is missing, and which commands that stops.

It works before anything else does: it imports no heavy package and runs other programs with a time limit.
"""

from __future__ import annotations

import importlib.metadata
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

from trainfleet.cli import COMMANDS
from trainfleet.command_needs import CLOUD, Needs, needs_of
from trainfleet.console import out, print_json
from trainfleet.errors import MissingToolError

Status = Literal["here", "scarce", "missing"]
GIB = 1 << 30
OLDEST, NEWEST = (3, 11), (3, 13)
TIMEOUT_S = 20.0
COLOURS = {"here": "green", "scarce": "yellow", "missing": "red"}
EXIT_ZERO_COMMANDS = ("rehearse", "train")
"""The commands that must work for exit code 0."""
EXTRAS_WITHOUT_CHECK = ("all", "dev", "docs", "pulumi", "review")
"""Extras without a row: unions of others, the tools of contributors, and the base of every cloud."""


@dataclass(frozen=True)
class Check:
    """One row of the report.

    Attributes:
        key: the name by which `command_needs.NEEDS` refers to it.
        name: what a person reads.
        commands: the commands that use it.
        needed: whether any of them stops without it.
        fix: how to get it.
    """

    key: str
    name: str
    status: Status
    detail: str
    fix: str = ""

    @property
    def commands(self) -> tuple[str, ...]:
        if self.key == "python":
            return tuple(COMMANDS)
        return tuple(name for name in COMMANDS if self._used_by(needs_of(name)))

    @property
    def needed(self) -> bool:
        required = (part for name in COMMANDS for part in needs_of(name).required)
        return self.key == "python" or self.key in required

    def _used_by(self, needs: Needs) -> bool:
        part = CLOUD if self.key.startswith(f"{CLOUD}-") else self.key
        return part in (*needs.required, *needs.optional)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "commands": list(self.commands), "needed": self.needed}


def examine() -> list[Check]:
    """Run every check, in the order in which a newcomer needs them."""
    from trainfleet.toolchain import cache_folder

    return [
        python(),
        *(cloud(name) for name in clouds()),
        engine(),
        space("engine-disk", "disk for the engine", cache_folder(), 3 * GIB),
        knowledge(),
        *(extra(name) for name in extras() if name not in (*EXTRAS_WITHOUT_CHECK, *clouds())),
        cpus(),
        memory(),
        shared_memory(),
        space("run-disk", "disk for runs", Path.cwd(), 2 * GIB),
        gpu(),
        local_cluster(),
        *(program(*each) for each in PROGRAMS),
    ]


def ready(checks: Iterable[Check]) -> dict[str, bool]:
    """Return for each command whether it can work here."""
    checks = list(checks)
    missing = {check.key for check in checks if check.status == "missing"}
    providers = {check.key for check in checks if check.key.startswith(f"{CLOUD}-")}
    if providers and providers <= missing:
        missing.add(CLOUD)
    return {
        command: "python" not in missing and not missing.intersection(needs_of(command).required)
        for command in COMMANDS
    }


def python() -> Check:
    """Check the version of the running Python."""
    version, span = sys.version_info[:2], f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    detail = f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]} in {sys.prefix}"
    if OLDEST <= version <= NEWEST:
        return Check("python", "Python", "here", detail)
    fix = f"install Python {span}, then `make setup PYTHON=python{NEWEST[0]}.{NEWEST[1]}`"
    return Check("python", "Python", "missing", detail, fix)


def clouds() -> list[str]:
    """Return the clouds that a spec can name."""
    from trainfleet.infra.clouds import Cloud

    return [each.value for each in Cloud]


def extras() -> dict[str, list[str]]:
    """Return the extras of the installed package, each with the distributions it adds."""
    metadata = importlib.metadata.metadata("trainfleet")
    found: dict[str, list[str]] = {name: [] for name in sorted(metadata.get_all("Provides-Extra") or ())}
    for line in importlib.metadata.requires("trainfleet") or ():
        package, marker = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w.-]+)['\"]", line)
        if package and marker and marker.group(1) in found:
            found[marker.group(1)].append(package.group())
    return found


def cloud(name: str) -> Check:
    """Check the packages that `rehearse` needs for one cloud's stacks."""
    package = name if name in extras() else "pulumi"
    return _packages(f"{CLOUD}-{name}", f"cloud `{name}`", package)


def extra(name: str) -> Check:
    """Check the packages of one extra."""
    return _packages(f"extra-{name}", f"extra `{name}`", name)


def _packages(key: str, title: str, name: str) -> Check:
    versions = {package: version_of(package) for package in extras()[name]}
    if absent := [package for package, version in versions.items() if not version]:
        detail = f"not installed: {', '.join(absent)}"
        return Check(
            key, title, "missing", detail, f"pip install 'trainfleet[{name}]'; in a checkout: make setup"
        )
    own = [package for package in versions if name in package or package in _MAIN_PACKAGES] or list(versions)
    return Check(key, title, "here", ", ".join(f"{package} {versions[package]}" for package in own))


_MAIN_PACKAGES = ("pulumi", "torch", "ray", "transformers", "soundfile", "scikit-learn", "optuna", "skypilot")
"""Packages whose versions the report shows, to keep a row on one line."""


def version_of(package: str) -> str:
    """Return the version of an installed distribution, or an empty text."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def engine() -> Check:
    """Check the Pulumi engine: the named one, the one on PATH, an earlier build, or the means to build it."""
    from trainfleet.rehearsal.engine.build import key
    from trainfleet.rehearsal.engine.find import find_engine, installed
    from trainfleet.toolchain import ENGINE, cache_folder, pinned

    title = "Pulumi engine"
    if os.environ.get("TRAINFLEET_PULUMI"):
        try:
            named = find_engine()
        except MissingToolError as error:
            return Check("engine", title, "missing", str(error.problems[0]), error.problems[0].fix)
        detail = f"{named.version} at {named.path}, named by TRAINFLEET_PULUMI"
        return Check("engine", title, "here", detail)
    if (own := installed()) is not None:
        return Check("engine", title, "here", f"{own.version} at {own.path}")
    built = cache_folder() / f"engine-{key()}" / "bin" / "pulumi"
    if built.is_file():
        return Check("engine", title, "here", f"{pinned(ENGINE)}, built from the pins, at {built}")
    return _engine_build(title, pinned("go"))


def _engine_build(title: str, go_version: str) -> Check:
    """Check what an engine could be built with."""
    found = shutil.which("pulumi")
    state = "the `pulumi` on PATH is older than 3.200 or does not answer" if found else "no `pulumi` on PATH"
    if go := usable_go(go_version):
        detail = f"{state}; the first rehearsal builds one with {go}, in about 3 minutes"
        return Check("engine", title, "here", detail)
    fix = f"install Pulumi 3.200 or newer, or Go {go_version} or newer"
    if version_of("pip"):
        detail = (
            f"{state}; the first rehearsal downloads Go with pip, if it can reach an index, and builds one"
        )
        return Check("engine", title, "scarce", detail, fix)
    detail = f"{state}; no Go {go_version} to build one with, and no pip to download Go with"
    return Check("engine", title, "missing", detail, fix)


def usable_go(required: str) -> str:
    """Return the path of the `go` command if it is new enough, else an empty text."""
    go = shutil.which("go")
    match = re.search(r"go(\d+)\.(\d+)(?:\.(\d+))?", answer([go, "version"])) if go else None
    numbers = tuple(int(number or 0) for number in match.groups()) if match else ()
    return go if go and numbers >= tuple(map(int, required.split("."))) else ""


def knowledge() -> Check:
    """Check that what is known about the providers was generated for the SDKs that are installed."""
    from trainfleet.rehearsal.simulation import facts
    from trainfleet.rehearsal.simulation.knowledge_table import behind, origins

    if outdated := [*behind(version_of), *facts.behind(version_of)]:
        fix = "trainfleet knowledge update"
        return Check("knowledge", "provider knowledge", "scarce", "; ".join(outdated), fix)
    return Check("knowledge", "provider knowledge", "here", ", ".join(origins()))


def cpus() -> Check:
    """Check the CPUs of this process; a container can have fewer than the machine."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if count >= 2:
        return Check("cpus", "CPUs", "here", str(count))
    fix = "train with `scaling.workers=1`, or on a machine with 2 CPUs"
    return Check("cpus", "CPUs", "scarce", str(count), fix)


def memory() -> Check:
    """Check that memory is free for a run of two workers and Ray."""
    import psutil

    free, total = psutil.virtual_memory().available, psutil.virtual_memory().total
    detail = f"{free / GIB:.1f} GiB free of {total / GIB:.1f}"
    if free >= 4 * GIB:
        return Check("memory", "memory", "here", detail)
    return Check("memory", "memory", "scarce", detail, "free up 4 GiB")


def shared_memory(folder: Path = Path("/dev/shm")) -> Check:
    """Check the size of Ray's object store; if it is too small, Ray uses the disk."""
    key, title = "shared-memory", "shared memory"
    fix = "in a container: `--shm-size=2g`; otherwise Ray stores its objects on disk"
    if not folder.is_dir():
        return Check(key, title, "scarce", f"no {folder}", fix)
    total = shutil.disk_usage(folder).total
    if total >= GIB:
        return Check(key, title, "here", f"{total / GIB:.1f} GiB in {folder}")
    return Check(key, title, "scarce", f"{total / GIB:.2f} GiB in {folder}", fix)


def space(key: str, title: str, folder: Path, required: int) -> Check:
    """Check the free space of a folder that may not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if not os.access(existing, os.W_OK):
        return Check(key, title, "scarce", f"{folder} is not writable", "choose another folder")
    detail = f"{free / GIB:.1f} GiB free in {folder}"
    if free < required:
        return Check(key, title, "scarce", detail, f"free up {required / GIB:.0f} GiB")
    return Check(key, title, "here", detail)


def gpu() -> Check:
    """List the NVIDIA GPUs that the driver reports. Training works without one."""
    listed = answer(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    found = [line.strip() for line in listed.splitlines() if line.count(",") == 2]
    if found:
        return Check("gpu", "GPU", "here", "; ".join(found))
    return Check("gpu", "GPU", "missing", "nvidia-smi lists none; runs use the CPU")


def local_cluster() -> Check:
    """Check whether `trainfleet cluster up` can run on this machine."""
    from trainfleet.local_cluster import checks

    key, title = "local-cluster", "local cluster"
    if reason := checks.unsupported_reason():
        return Check(key, title, "missing", reason, "use an existing cluster: --context NAME")
    if packages := checks.missing_packages():
        detail = f"missing Debian packages: {', '.join(packages)}"
        return Check(key, title, "scarce", detail, "trainfleet cluster up --install")
    return Check(key, title, "here", "Linux, root, and all Debian packages")


PROGRAMS: tuple[tuple[str, str, str], ...] = (
    ("git", "--version", "install Git"),
    ("kubectl", "version --client", "install kubectl"),
    ("helm", "version --short", ""),
    ("buildah", "--version", ""),
    ("podman", "--version", ""),
    ("docker", "--version", ""),
    ("aws", "--version", ""),
    ("gcloud", "--version", ""),
    ("az", "--version", ""),
    ("gke-gcloud-auth-plugin", "--version", ""),
    ("kubelogin", "--version", ""),
    ("socat", "-V", "install socat"),
    ("nc", "", "install netcat-openbsd"),
    ("rsync", "--version", "install rsync"),
    ("ssh", "", "install openssh-client"),
)
"""External programs: name, arguments that print the version (none: only look for it), and the fix."""


def program(name: str, arguments: str, fix: str) -> Check:
    """Check one external program."""
    path = shutil.which(name)
    if path is None:
        return Check(name, name, "missing", "not on PATH", fix)
    output = answer([path, *arguments.split()]).strip().splitlines() if arguments else []
    return Check(name, name, "here", output[0] if output else path)


def answer(command: list[str]) -> str:
    """Return a program's stdout; empty if it is missing, fails or exceeds the time limit."""
    try:
        finished = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return finished.stdout if finished.returncode == 0 else ""


doctor = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@doctor.command()
def show(
    json: bool = typer.Option(
        False, "--json", help="Print one JSON document on stdout instead of the table."
    ),
) -> None:
    """Show what is installed, and which commands cannot work because something is missing.

    Exit code 0 if `rehearse` (of at least one cloud) and `train` can work, 3 otherwise.

    [bold]Examples[/]

    \b
      trainfleet doctor
      trainfleet doctor --json | jq .ready
    """
    checks = examine()
    works = ready(checks)
    supported = {check.key.removeprefix(f"{CLOUD}-"): check.status == "here" for check in _of_clouds(checks)}
    report = {"ready": works, "clouds": supported, "checks": [check.as_json() for check in checks]}
    (print_json if json else print_table)(report)
    if not all(works[command] for command in EXIT_ZERO_COMMANDS):
        raise typer.Exit(3)


def _of_clouds(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if check.key.startswith(f"{CLOUD}-")]


def print_table(report: dict[str, Any]) -> None:
    """Print the report: one row per check, then the commands that work and those that do not."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, wraps in (("", False), ("what", False), ("found", True), ("used by", True)):
        table.add_column(column, no_wrap=not wraps, overflow="fold")
    for check in report["checks"]:
        optional = check["status"] == "missing" and not check["needed"]
        status = "optional" if optional else check["status"]
        found = escape(check["detail"]) + (f" [cyan]-> {escape(check['fix'])}[/]" if check["fix"] else "")
        commands = "all commands" if len(check["commands"]) == len(COMMANDS) else ", ".join(check["commands"])
        table.add_row(f"[{COLOURS.get(status, 'dim')}]{status}[/]", check["name"], found, commands)
    console = out()
    console.print(table)
    supported = [name for name, works in report["clouds"].items() if works]
    console.print(
        f"\nrehearse and diff work for: [green]{', '.join(supported) or 'no cloud'}[/]", soft_wrap=True
    )
    working = [command for command, works in report["ready"].items() if works]
    console.print(f"commands that work: [green]{', '.join(working) or 'none'}[/]", soft_wrap=True)
    if stopped := [command for command, works in report["ready"].items() if not works]:
        console.print(f"commands that cannot work yet: [red]{', '.join(stopped)}[/]", soft_wrap=True)
