"""Builds the cluster's programs from their pins, once per machine and user, into the user's cache folder.

Each program has its own folder, which is complete or absent: it is built under a temporary name and renamed,
under a lock. Kubernetes, the largest, is built in parallel with the others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.local_cluster.node import ISOLATED
from trainfleet.local_cluster.pins import KUBE, OPTIONAL, PROGRAMS, Program
from trainfleet.toolchain import build_lock, cache_folder, find_go, run_go

Progress = Callable[[str], None]
ROLE_FILE = "role.yaml"
"""KubeRay's ClusterRole, from the same module version as the operator, in the operator's folder."""


def folder_of(program: Program) -> Path:
    """The folder of a program's build, whether it exists or not."""
    return cache_folder() / f"{program.name}-{program.key}"


def executable(program: Program) -> Path:
    return folder_of(program) / program.name


def missing(optional: Set[Program] = OPTIONAL) -> list[Program]:
    """The programs that have not been built yet, with these of the optional ones."""
    return [
        program
        for program in PROGRAMS
        if program not in OPTIONAL - optional and not executable(program).is_file()
    ]


def build_all(progress: Progress, optional: Set[Program] = OPTIONAL) -> None:
    """Build the missing programs, two at a time.

    Raises:
        MissingToolError: Go is missing and cannot be downloaded.
        TrainfleetError: a build failed; finished builds are kept.
    """
    todo = missing(optional)
    if not todo:
        return
    cache_folder().mkdir(parents=True, exist_ok=True)
    go = find_go(progress)
    programs = ", ".join(f"{program.name} {program.version}" for program in todo)
    progress(f"building {programs} from their pins, once for this machine")
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
        source, built = work / "source", work / "built"
        shutil.copytree(program.pins, source)
        built.mkdir()
        flags = f"-s -w {program.flags.format(version=program.version)}".strip()
        command = [*(ISOLATED if os.geteuid() == 0 else ()), str(go), "build", "-trimpath"]
        command += ["-ldflags", flags, "-o", str(built / program.name), program.package]
        run_go(command, source, progress, program.name)
        for name in program.files:
            _copy(_module_folder(go, source, program.module) / name, built)
        shutil.rmtree(target, ignore_errors=True)  # exists if only the executable was removed
        os.replace(built, target)
        progress(f"{program.name}: built {program.version}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _copy(source: Path, folder: Path) -> None:
    """Copy a file or folder of a module, which is read-only, into a folder."""
    if source.is_dir():
        shutil.copytree(source, folder / source.name, copy_function=shutil.copyfile)
    else:
        shutil.copyfile(source, folder / source.name)


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
        raise TrainfleetError("the folder of a module is unknown", [Problem(module, done.stderr.strip())])
    return Path(json.loads(done.stdout)["Dir"])
