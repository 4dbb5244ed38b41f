"""Builds the cluster's programs from their pins, once per machine and user, into the user's cache folder.

Each program has a folder of its own, whole or absent: made beside its place and renamed, under a lock, so an
interrupted
build leaves the finished ones. The largest (Kubernetes) is built beside the others. Easy to get wrong:
KubeRay's rights come
from its module too, and must be of the same version as the operator.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.local_cluster.node import GUARD
from trainfleet.local_cluster.pins import KUBE, KWOK, PROGRAMS, RAY_OPERATOR, Program
from trainfleet.toolchain import build_lock, cache_folder, find_go, run_go

Progress = Callable[[str], None]
RIGHTS = "role.yaml"
"""KubeRay's ClusterRole, beside its executable."""


def folder_of(program: Program) -> Path:
    """Where a program's build is, or will be."""
    return cache_folder() / f"{program.name}-{program.key}"


def executable(program: Program) -> Path:
    return folder_of(program) / program.name


def missing(simulated: bool = True) -> list[Program]:
    """The programs that have not been built yet; kwok counts only where nodes are simulated."""
    return [
        program
        for program in PROGRAMS
        if (simulated or program is not KWOK) and not executable(program).is_file()
    ]


def build_all(progress: Progress, simulated: bool = True) -> None:
    """Build what is missing, two at a time.

    Raises:
        MissingToolError: no Go, and none to be had.
        TrainfleetError: a build failed; those that worked are kept.
    """
    todo = missing(simulated)
    if not todo:
        return
    cache_folder().mkdir(parents=True, exist_ok=True)
    go = find_go(progress)
    progress(
        f"building {', '.join(f'{program.name} {program.version}' for program in todo)} from their pins, once for this machine"
    )
    rows = [row for row in ([p for p in todo if p is KUBE], [p for p in todo if p is not KUBE]) if row]
    with ThreadPoolExecutor(len(rows)) as pool:
        for done in [pool.submit(_build_row, row, go, progress) for row in rows]:
            done.result()


def _build_row(programs: Sequence[Program], go: Path, progress: Progress) -> None:
    for program in programs:
        with build_lock(folder_of(program).with_suffix(".lock"), progress, program.name):
            if not executable(program).is_file():
                _build(program, go, progress)


def _build(program: Program, go: Path, progress: Progress) -> None:
    target = folder_of(program)
    for stale in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        source, made = work / "source", work / "made"
        shutil.copytree(program.pins, source)
        made.mkdir()
        flags = f"-s -w {program.flags.format(version=program.version)}".strip()
        command = [
            *(GUARD if os.geteuid() == 0 else ()),
            str(go),
            "build",
            "-trimpath",
            "-ldflags",
            flags,
            "-o",
            str(made / program.name),
            program.package,
        ]
        run_go(command, source, progress, program.name)
        if program is RAY_OPERATOR:
            shutil.copyfile(
                _module_folder(go, source, program.module) / "config" / "rbac" / RIGHTS, made / RIGHTS
            )
        shutil.rmtree(target, ignore_errors=True)  # somebody removed the executable only
        os.replace(made, target)
        progress(f"{program.name}: built {program.version}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _module_folder(go: Path, source: Path, module: str) -> Path:
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    done = subprocess.run(
        [str(go), "list", "-m", "-json", module],
        cwd=source,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TrainfleetError("a module's folder is not known", [Problem(module, done.stderr.strip())])
    return Path(json.loads(done.stdout)["Dir"])
