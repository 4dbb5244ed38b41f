"""Prepared tokens of a size that does not fit in memory: what they cost to prepare, to open and to re-enter.

    python -m benchmarks.tokens [--size 10GB] [--smoke] [--json]

Random tokens of 16 bits in files of 8 MiB are prepared as `lm` does, in samples of 2,048 tokens and blocks
of the default size. Then fresh processes, as ranks do, open the data and read a batch of 64 samples in
windowed order, at the start of an epoch and at its middle. The files were just written, so a part of them may
be in the page cache. Raw files, parts and blocks are on the disk of TMPDIR, three times the size, and are
deleted.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import command
from benchmarks.ingest import FirstTwo, Words
from benchmarks.preparation import resident
from trainfleet.errors import InputError, Problem
from trainfleet.training.data import find_source, open_prepared, prepare
from trainfleet.training.data.blocks import MANIFEST
from trainfleet.training.data.order import WindowOrder

CONTEXT, BATCH, WINDOW = 2048, 64, 16
"""Samples of tokens, samples of a batch, and blocks of a window (the recipe's default)."""
MEMORY_MIB = 1024
"""The default of `workload.data.memory_mib`."""
FILE_BYTES = 8 << 20
"""Below the size from which preparation reads a file in several units, which end at a line break."""
SIZE, SMOKE = "10GB", "10MB"
UNITS = {"MB": 10**6, "GB": 10**9}
ENTRIES = 5
PACKAGES = ("numpy", "pyarrow")


def bytes_of(text: str) -> int:
    """A size such as `10GB`.

    Raises:
        InputError: it is none.
    """
    found = re.fullmatch(r"(\d+)(MB|GB)", text)
    if found is None:
        raise InputError("the size is not valid", [Problem("--size", f"`{text}`", "such as 10GB or 500MB")])
    return int(found[1]) * UNITS[found[2]]


def write_raw(folder: Path, size: int) -> None:
    """Files of random tokens; each is a part of the same ones, from another place on."""
    folder.mkdir()
    each = min(FILE_BYTES, size // 8 // 2 * 2)
    tokens = memoryview(np.random.default_rng(0).integers(0, 50_000, each, dtype=np.uint16).tobytes())
    for number in range(size // each):
        start = number * 8190 % each
        (folder / f"{number:05}.bin").write_bytes(tokens[start : start + each])


def prepare_tokens(raw: str, cache: str) -> dict[str, Any]:
    """Prepare the files in this process and its pool."""
    began = time.perf_counter()
    data = prepare(find_source(raw), Words(), Path(cache), name="words", rule=FirstTwo(), pack=CONTEXT)
    used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    blocks = data.manifest.splits["train"]
    return {
        "where": data.where,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(sum(each.ru_utime + each.ru_stime for each in used), 1),
        "blocks": sum(len(each) for each in data.manifest.splits.values()),
        "block_mib": round(max(each.bytes for each in blocks) / 2**20, 2),
        "gb": round(data.manifest.bytes() / 1e9, 3),
        "manifest_kib": round((Path(data.where) / MANIFEST).stat().st_size / 2**10, 1),
    }


def enter(where: str, share: str) -> dict[str, Any]:
    """In this process: open the data and read a batch at a share of an epoch. Seconds, and memory in MiB."""
    import pyarrow.fs  # noqa: F401 - imported before the measurement
    import torch  # noqa: F401 - the same

    before, began = resident(os.getpid())["anonymous"], time.perf_counter()
    data = open_prepared(where)
    opened, after = time.perf_counter() - began, resident(os.getpid())["anonymous"]
    blocks = data.blocks("train", memory=MEMORY_MIB << 20)
    order = WindowOrder(1, blocks.sizes(), WINDOW)
    position = int(float(share) * order.size)
    blocks.rows(order.indices(position, BATCH))
    first = time.perf_counter() - began
    for number in range(1, 9):
        blocks.rows(order.indices(position + number * BATCH, BATCH))
    return {
        "manifest_seconds": opened,
        "first_batch_seconds": first,
        "blocks_opened": blocks.opened,
        "manifest_mib": (after - before) / 2**20,
        "memory_mib": (resident(os.getpid())["anonymous"] - before) / 2**20,
        "resident_mib": resident(os.getpid())["all"] / 2**20,
    }


def child(*arguments: str) -> dict[str, Any]:
    """Run a part of this benchmark in its own process."""
    line = [sys.executable, "-m", "benchmarks.tokens", "--part", *arguments]
    return dict(json.loads(subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True).stdout))


def measure(size: int, entries: int) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="trainfleet-tokens-") as folder:
        raw = Path(folder) / "raw"
        print(f"writing {size / 1e9:g} GB", file=sys.stderr)
        write_raw(raw, size)
        print("preparing", file=sys.stderr)
        prepared = child("prepare", str(raw), f"{folder}/cache")
        shutil.rmtree(raw)
        print("reading", file=sys.stderr)
        where = prepared.pop("where")
        found = {share: [child("enter", where, share) for _ in range(entries)] for share in ("0", "0.5")}
    return {
        **command.environment(PACKAGES),
        "load_at_start": round(load, 2),
        "prepared": prepared,
        "entries": {
            share: {key: command.summary([row[key] for row in rows], 4) for key in rows[0]}
            for share, rows in found.items()
        },
    }


NAMES = {
    "manifest_seconds": "reading the manifest, s",
    "first_batch_seconds": "to the first batch, s",
    "blocks_opened": "blocks opened for it",
    "manifest_mib": "memory allocated for the manifest, MiB",
    "memory_mib": "memory allocated after nine batches, MiB",
    "resident_mib": "resident, with Python, torch and mapped blocks, MiB",
}


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    command.show_environment(document)
    print(f"load {document['load_at_start']} at the start\n")
    row = document["prepared"]
    print(
        "| tokens, GB | blocks | of MiB | manifest, KiB | seconds | CPU seconds |\n|---|---|---|---|---|---|"
    )
    keys = ("gb", "blocks", "block_mib", "manifest_kib", "seconds", "cpu_seconds")
    print("| " + " | ".join(f"{row[key]:,}" for key in keys) + " |\n")
    print("| what | median | min | max |\n|---|---|---|---|")
    for share, rows in document["entries"].items():
        place = "the start" if share == "0" else "the middle"
        for key, each in rows.items():
            cells = " | ".join(f"{each[which]:.4g}" for which in ("median", "least", "most"))
            print(f"| {NAMES[key]}, at {place} | {cells} |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    return measure(bytes_of(name or (SMOKE if smoke else SIZE)), 1 if smoke else ENTRIES)


def main() -> int:
    """Measure and print."""
    if sys.argv[1:2] == ["--part"]:
        part, *arguments = sys.argv[2:]
        print(json.dumps(prepare_tokens(*arguments) if part == "prepare" else enter(*arguments)))
        return 0
    return command.run(__doc__, "size", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
