"""Preparation of images as the number of samples grows, and the manifest of very large data.

    python -m benchmarks.preparation [--samples 10000,100000,1000000] [--smoke] [--json]

Images: random PNG images of 32 by 32 pixels in parquet files are prepared in a process of its own, with its
pool. The sum of the resident memory of these processes is read every 0.1 s: `anonymous` is what they
allocate, the rest is mapped files, which the system takes back when it needs memory. CPU seconds depend less
on other load than seconds. Three times the size of
the blocks must be free on the disk of TMPDIR: raw files, parts and blocks.

Manifest: for data of 1 and 10 TB, the number of blocks that preparation chooses, and the time and memory of a
process that parses such a manifest, as each rank does.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import command
from trainfleet.training.data.blocks import MANIFEST, BlockEntry, Manifest
from trainfleet.training.data.columns import Column
from trainfleet.training.data.pack_blocks import block_bytes_for
from trainfleet.training.data.prepare import BLOCK_BYTES

SIDE, CLASSES = 32, 10
FILE_ROWS, GROUP_ROWS = 50_000, 1_000
DISTINCT = 4096
"""Different images. Encoding them takes longer than writing them, and is not measured."""
SAMPLES = (10_000, 100_000, 1_000_000)
TERABYTES = (1, 10)
CONTEXT = 2048
PACKAGES = ("numpy", "pyarrow", "pillow")
TARGETS = {"memory": 1.5, "time": 1.5}
"""Of the largest over the second largest number of samples: anonymous memory, and CPU seconds per sample."""


def write_images(folder: Path, count: int) -> None:
    """Parquet files of encoded images and their classes."""
    import io

    import pyarrow as pa
    from PIL import Image
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    encoded = []
    for _ in range(min(DISTINCT, count)):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(
            buffer, "PNG", compress_level=1
        )
        encoded.append(buffer.getvalue())
    folder.mkdir()
    for number, first in enumerate(range(0, count, FILE_ROWS)):
        rows = min(FILE_ROWS, count - first)
        images = [encoded[each] for each in rng.integers(0, len(encoded), rows)]
        labels = [f"class{each}" for each in rng.integers(0, CLASSES, rows)]
        parquet.write_table(
            pa.table({"image": images, "label": labels}),
            folder / f"{number:04}.parquet",
            row_group_size=GROUP_ROWS,
            compression="none",
            use_dictionary=False,
        )


def prepare_images(source: str, cache: str) -> dict[str, Any]:
    """Prepare the images of a folder as the vision workload does, in this process and its pool."""
    from trainfleet.training.workloads.vision.images import image_blocks
    from trainfleet.training.workloads.vision.settings import ImageSettings

    began = time.perf_counter()
    prepared, _ = image_blocks(ImageSettings(source=source, size=SIDE, channels=3), Path(cache))
    blocks = prepared.manifest.splits
    used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "cpu_seconds": round(sum(each.ru_utime + each.ru_stime for each in used), 2),
        "seconds": round(time.perf_counter() - began, 2),
        "samples": sum(prepared.manifest.rows(split) for split in blocks),
        "blocks": sum(len(each) for each in blocks.values()),
        "block_mib": round(prepared.manifest.bytes() / 2**20, 1),
    }


def parse_manifest(path: str) -> dict[str, Any]:
    """Parse a manifest in this process: seconds, and the growth of its resident memory."""
    text = Path(path).read_text()
    before, began = resident(os.getpid())["anonymous"], time.perf_counter()
    manifest = Manifest.parse(text, path)
    seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 2),
        "grown_mib": round((resident(os.getpid())["anonymous"] - before) / 2**20, 1),
        "blocks": sum(len(each) for each in manifest.splits.values()),
    }


def write_manifest(path: Path, terabytes: int) -> None:
    """The manifest of data that was prepared with the default size of blocks. There are no blocks."""
    total, sample = terabytes * 10**12, 2 * (CONTEXT + 1)
    rows = block_bytes_for(total, BLOCK_BYTES) // sample
    rng = np.random.default_rng(0)
    entries = [
        BlockEntry(
            f"train/{number:05}.arrow",
            rows,
            rows * sample,
            rng.bytes(32).hex(),
            int(rng.integers(0, 2**32)),
        )
        for number in range(-(-total // (rows * sample)))
    ]
    path.write_text(Manifest({"tokens": Column("uint16", (CONTEXT + 1,))}, rows, {"train": entries}).dump())


def resident(process: int) -> dict[str, int]:
    """Resident bytes of a process (Linux): all, and those that it allocated."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    found = {
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in lines
        if line.startswith(("VmRSS", "RssA"))
    }
    return {"all": found.get("VmRSS", 0), "anonymous": found.get("RssAnon", 0)}


def child(*arguments: str) -> dict[str, Any]:
    """Run a part of this benchmark in its own process; adds the peak memory of it and its children."""
    import psutil

    peak = {"all": 0, "anonymous": 0}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.preparation", "--part", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        tree = psutil.Process(running.pid)
        while running.poll() is None:
            total = {"all": 0, "anonymous": 0}
            try:
                for each in (tree, *tree.children(recursive=True)):
                    for kind, size in resident(each.pid).items():
                        total[kind] += size
            except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                pass  # it ended meanwhile
            peak = {kind: max(peak[kind], total[kind]) for kind in peak}
            time.sleep(0.1)
        assert running.stdout is not None
        output = running.stdout.read()
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, running.args)
    return {**json.loads(output), **{f"{kind}_mib": round(size / 2**20, 1) for kind, size in peak.items()}}


def measure(samples: tuple[int, ...], terabytes: tuple[int, ...]) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints."""
    images: list[dict[str, Any]] = []
    manifests: dict[str, dict[str, Any]] = {}
    for count in samples:
        with tempfile.TemporaryDirectory(prefix="trainfleet-preparation-") as folder:
            print(f"{count:,} images", file=sys.stderr)
            write_images(Path(folder) / "raw", count)
            images.append(child("images", f"{folder}/raw", f"{folder}/cache"))
    for size in terabytes:
        with tempfile.TemporaryDirectory(prefix="trainfleet-preparation-") as folder:
            path = Path(folder) / MANIFEST
            write_manifest(path, size)
            manifests[f"{size} TB"] = {
                "mib": round(path.stat().st_size / 2**20, 1),
                "block_mib": round(block_bytes_for(size * 10**12, BLOCK_BYTES) / 2**20, 1),
                **child("manifest", str(path)),
            }
    before, last = images[-2:] if len(images) > 1 else (images[-1], images[-1])
    before_each, last_each = (row["cpu_seconds"] / row["samples"] for row in (before, last))
    return {
        **command.environment(PACKAGES),
        "images": images,
        "growth": {
            "memory": round(last["anonymous_mib"] / before["anonymous_mib"], 2),
            "time": round(last_each / before_each, 2),
        },
        "manifests": manifests,
        "targets": TARGETS,
    }


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    command.show_environment(document)
    print(f"\nImages of {SIDE} x {SIDE} pixels, 3 channels\n")
    keys = ("samples", "blocks", "block_mib", "seconds", "cpu_seconds", "anonymous_mib", "all_mib")
    print("| samples | blocks | MiB | seconds | CPU seconds | allocated MiB | resident MiB |")
    print("|---|---|---|---|---|---|---|")
    for row in document["images"]:
        print("| " + " | ".join(f"{row[key]:,}" for key in keys) + " |")
    growth, targets = document["growth"], document["targets"]
    memory = f"memory {growth['memory']} (<= {targets['memory']})"
    print(f"\ngrowth: {memory}, CPU seconds per sample {growth['time']} (<= {targets['time']})\n")
    print("| tokens | blocks | block MiB | manifest MiB | parse s | grown MiB |\n|---|---|---|---|---|---|")
    for name, row in document["manifests"].items():
        cells = (row[key] for key in ("blocks", "block_mib", "mib", "seconds", "grown_mib"))
        print(f"| {name} | " + " | ".join(f"{each:,}" for each in cells) + " |")


def _chosen(names: str, smoke: bool) -> dict[str, Any]:
    if smoke:
        return measure((500, 1_000), (1,))
    return measure(tuple(int(each) for each in names.split(",")) if names else SAMPLES, TERABYTES)


def main() -> int:
    """Measure and print."""
    if sys.argv[1:2] == ["--part"]:
        parts: dict[str, Callable[..., dict[str, Any]]] = {
            "images": prepare_images,
            "manifest": parse_manifest,
        }
        part = parts[sys.argv[2]]
        print(json.dumps(part(*sys.argv[3:])))
        return 0
    return command.run(__doc__, "samples", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
