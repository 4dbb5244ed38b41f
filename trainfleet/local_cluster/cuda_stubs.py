"""Replaces CUDA's large libraries by stubs in the CPU image: torch from the lock is linked to them and loads
them, but never calls them.

A stub exports the symbols that torch resolves at load time, and every function aborts. Two gigabytes become
some kilobytes. Small libraries are kept as they are, among them the one that reports that there is no GPU.
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

STUB_FROM_BYTES = 12 << 20
"""A library of this size or more is replaced by a stub."""


@dataclass(frozen=True)
class Symbol:
    """A dynamic symbol: its name, its version and nm's letter: T, W and i are functions."""

    name: str
    version: str
    kind: str


def install_stubs(nvidia: Path, torch: Path, target: Path, work: Path) -> int:
    """Write to `target` what torch needs of the libraries in `nvidia`, at the same relative paths.

    Args:
        nvidia: the folder `nvidia` of the real packages; only read.
        torch: the folder `torch`.
        target: the folder `nvidia` of the image.
        work: a folder for sources.

    Returns:
        How many libraries were replaced by stubs.
    """
    libraries = sorted((torch / "lib").glob("*.so*"))
    names = {symbol.name for library in libraries for symbol in _symbols(library, "--undefined-only")}
    available = {path.name: path for path in sorted(nvidia.rglob("*.so*"))}
    todo = [name for library in libraries for name in needed_libraries(library) if name in available]
    seen: set[str] = set()
    stubs = 0
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        real, path = available[name], target / available[name].relative_to(nvidia)
        path.parent.mkdir(parents=True, exist_ok=True)
        if real.stat().st_size < STUB_FROM_BYTES:
            shutil.copyfile(real, path)
            todo += [other for other in needed_libraries(real) if other in available]
            names |= {symbol.name for symbol in _symbols(real, "--undefined-only")}
        else:
            symbols = [symbol for symbol in _symbols(real, "--defined-only") if symbol.name in names]
            _compile_stub(name, symbols, path, work)
            stubs += 1
    return stubs


def needed_libraries(library: Path) -> list[str]:
    """The names of the libraries that `library` is linked to."""
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", _output("readelf", "--dynamic", "--wide", str(library)))


def _symbols(library: Path, which: str) -> list[Symbol]:
    found = []
    for line in _output("nm", "--dynamic", "--with-symbol-versions", which, str(library)).splitlines():
        kind, text = line.split()[-2:]
        name, _, version = text.partition("@")
        if kind != "A" and (kind != "w" or version):
            found.append(Symbol(name, version.lstrip("@"), kind))
    return found


def _compile_stub(name: str, symbols: Iterable[Symbol], path: Path, work: Path) -> None:
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
    command = ["gcc", "-shared", "-fPIC", "-O0", "-w", f"-Wl,-soname,{name}", "-o", str(path), str(source)]
    if any(by_version):  # the loader rejects a symbol without the version that it was linked with
        blocks = [
            f"{version or 'UNVERSIONED'} {{ global: {'; '.join(members)}; }};"
            for version, members in by_version.items()
        ]
        script.write_text("\n".join(blocks) + "\n")
        command.insert(1, f"-Wl,--version-script,{script}")
    _output(*command)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrainfleetError(
            "a CUDA stub cannot be built", [Problem(command[0], done.stderr.strip()[-300:])]
        )
    return done.stdout


def main() -> None:
    """`python cuda_stubs.py NVIDIA SITE-PACKAGES`, for images/Dockerfile."""
    nvidia, site = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as work:
        stubs = install_stubs(nvidia, site / "torch", site / "nvidia", Path(work))
    sys.stdout.write(f"{stubs} stubs\n")


if __name__ == "__main__":
    main()
