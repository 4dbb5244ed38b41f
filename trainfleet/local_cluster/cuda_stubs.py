"""Stand-ins for CUDA's large libraries in the CPU image: torch from the lock is linked to them and loads
them, but never calls them.

Two gigabytes of libraries become some kilobytes: each stand-in has the name of the library and the functions
that torch would look
for, and every one of them ends the program. Small libraries are the real ones, among them the one that says
"no GPU here".
Easy to get wrong: a symbol has a version, and the loader wants both.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainfleet.errors import Problem, TrainfleetError

LARGE = 12 << 20
"""Bytes from which a library is stood in for."""


@dataclass(frozen=True)
class Symbol:
    name: str
    version: str
    kind: str
    """nm's letter: T and W are functions, the rest is data."""


def replace(nvidia: Path, torch: Path, target: Path, work: Path) -> int:
    """Write to `target` what torch needs of the libraries in `nvidia`, at the same relative paths; returns
    how many are stand-ins.

    Args:
        nvidia: the folder `nvidia` of the real packages; only read.
        torch: the folder `torch`.
        target: the folder `nvidia` of the image.
        work: a folder for sources.
    """
    libraries = sorted((torch / "lib").glob("*.so*"))
    wanted = {symbol for library in libraries for symbol in _symbols(library, "--undefined-only")}
    names = {symbol.name for symbol in wanted}
    have = {path.name: path for path in sorted(nvidia.rglob("*.so*"))}
    todo = [name for library in libraries for name in needed(library) if name in have]
    seen: set[str] = set()
    made = 0
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        real, place = have[name], target / have[name].relative_to(nvidia)
        place.parent.mkdir(parents=True, exist_ok=True)
        if real.stat().st_size < LARGE:
            shutil.copyfile(real, place)
            todo += [other for other in needed(real) if other in have]
            names |= {symbol.name for symbol in _symbols(real, "--undefined-only")}
        else:
            _compile(
                name,
                [symbol for symbol in _symbols(real, "--defined-only") if symbol.name in names],
                place,
                work,
            )
            made += 1
    return made


def needed(library: Path) -> list[str]:
    """The libraries that one names as needed."""
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", _said("readelf", "--dynamic", "--wide", str(library)))


def _symbols(library: Path, which: str) -> list[Symbol]:
    found = []
    for line in _said("nm", "--dynamic", "--with-symbol-versions", which, str(library)).splitlines():
        kind, text = line.split()[-2:]
        name, _, version = text.partition("@")
        if kind not in "Aw" or version:
            found.append(Symbol(name, version.lstrip("@"), kind))
    return [symbol for symbol in found if symbol.kind != "A"]


def _compile(name: str, symbols: Iterable[Symbol], place: Path, work: Path) -> None:
    symbols = sorted({symbol.name: symbol for symbol in symbols}.values(), key=lambda symbol: symbol.name)
    source, script = work / f"{name}.c", work / f"{name}.map"
    lines = ["extern void abort(void);"]
    lines += [
        f"void {s.name}(void) {{ abort(); }}" if s.kind in "TWi" else f"char {s.name}[64];" for s in symbols
    ]
    source.write_text("\n".join(lines) + "\n")
    by_version: dict[str, list[str]] = {}
    for symbol in symbols:
        by_version.setdefault(symbol.version, []).append(symbol.name)
    blocks = [
        f"{version or 'UNVERSIONED'} {{ global: {'; '.join(members)}; }};"
        for version, members in by_version.items()
    ]
    command = ["gcc", "-shared", "-fPIC", "-O0", "-w", f"-Wl,-soname,{name}", "-o", str(place), str(source)]
    if any(by_version):
        script.write_text("\n".join(blocks) + "\n")
        command.insert(1, f"-Wl,--version-script,{script}")
    _said(*command)


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrainfleetError(
            "a stand-in for CUDA cannot be made", [Problem(command[0], done.stderr.strip()[-300:])]
        )
    return done.stdout


def main() -> None:
    """`python -m trainfleet.local_cluster.cuda_stubs NVIDIA SITE-PACKAGES`, for images/Dockerfile."""
    nvidia, site = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as work:
        made = replace(nvidia, site / "torch", site / "nvidia", Path(work))
    sys.stdout.write(f"{made} stand-ins\n")


if __name__ == "__main__":
    main()
