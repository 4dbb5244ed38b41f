"""Writing one rank's files of a checkpoint, one at a time and several at a time.

    python -m benchmarks.checkpoint_files [--mib N] [--smoke] [--json]

Four files in a temporary folder, with SHA-256, in turn, five rounds. With `OPENSSL_ia32cap=:~0x20000000` in
the environment, OpenSSL hashes as on a CPU without SHA instructions.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks import command
from trainfleet.training.checkpoint import files
from trainfleet.training.stores import open_store

FILES = 4


def measure(mib: int, rounds: int) -> dict[str, Any]:
    """Measure and return the document of `--json`; `mib` is the size of all files."""
    items: Any = [
        (SimpleNamespace(index=number), torch.rand((mib << 20) // 4 // FILES)) for number in range(FILES)
    ]
    several, size, load = files.WRITERS, files.FILE_BYTES, os.getloadavg()[0]
    files.FILE_BYTES = 1  # a file per item
    seconds: dict[int, list[float]] = {1: [], several: []}
    with tempfile.TemporaryDirectory(prefix="trainfleet-files-") as folder:
        for _ in range(rounds):
            for writers, found in seconds.items():
                files.WRITERS = writers
                store = open_store(str(Path(folder) / "checkpoints"))
                began = time.perf_counter()
                files.write_share(store, "step-1", 0, items)
                found.append(time.perf_counter() - began)
                shutil.rmtree(store.url)
    files.WRITERS, files.FILE_BYTES = several, size
    ratios = [one / other for one, other in zip(*seconds.values(), strict=True)]
    return {
        **command.environment(("torch",)),
        "load_at_start": round(load, 2),
        "mib": mib,
        "rounds": rounds,
        "writers": several,
        "mib_per_second": {
            str(writers): round(mib / statistics.median(found)) for writers, found in seconds.items()
        },
        "one at a time / several": command.summary(ratios, 2),
    }


def show(document: dict[str, Any]) -> None:
    """Print the table of docs/benchmarks.md."""
    command.show_environment(document)
    print(f"load {document['load_at_start']} at the start")
    print(f"{document['mib']} MiB in {FILES} files, {document['rounds']} rounds, in turn\n")
    print("| what | median | min | max |\n|---|---|---|---|")
    row = document["one at a time / several"]
    what = f"seconds one at a time / seconds {document['writers']} at a time"
    print(f"| {what} | {row['median']} | {row['least']} | {row['most']} |")
    for writers, rate in document["mib_per_second"].items():
        print(f"| MiB per second, {writers} at a time | {rate} | | |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    return measure(int(name or 64), 2) if smoke else measure(int(name or 3072), 5)


def main() -> int:
    """Measure and print; 3 GiB by default."""
    return command.run(__doc__, "mib", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
