"""Speed of reading data: Trainfleet's blocks in shuffled order, compared with a tuned torch DataLoader.

    python -m benchmarks.ingest [--smoke] [--json]

Both produce int64 batches of the same shape from the same block files in the same order of samples. They
alternate, each round in the other order, so that other load slows both. The DataLoader is tuned: batched
fetching (`__getitems__`), no collation, files mapped once, whole groups of rows copied where a batch has many
of a block, and the fastest number of workers of each round. Both sides are warmed up before they are timed.
It also reports the peak resident memory of a process that reads a data set and one ten times as large, and
the time of a fresh process to the first batch at 90 % of an epoch. All files were just written, so the page
cache is warm for both sides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import command
from trainfleet.training.data import Column, Prepared, SplitRule, find_source, open_prepared, prepare
from trainfleet.training.data.order import Order, SampleOrder, WindowOrder

CONTEXT = 256
WINDOW = 8
BLOCK_BYTES = 4 << 20
FILE_TOKENS = 1 << 20
MEMORY = 2 * WINDOW * BLOCK_BYTES * 5 // 4
BATCHES = (64, 512)
PREFETCH = 4
WARM_UP = 2 * PREFETCH * 2
"""Batches that are not timed: more than all workers have prefetched while the last of them started."""
GROUP = 4
"""Rows of a block in a batch from which copying them together is faster than one by one."""
TARGETS = {"speed": 1.0, "memory": 1.1, "re-entry": 2.0}
PACKAGES = ("torch", "numpy", "pyarrow")


class Words:
    """Raw bytes as 16-bit tokens."""

    columns = {"tokens": Column("uint16", (None,))}
    key = "words 1"

    def __call__(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"tokens": np.frombuffer(row["text"], dtype=np.uint16)} for row in rows]


class FirstTwo(SplitRule):
    """One file for validation, one for testing, the others for training."""

    def of_name(self, name: str) -> str:
        return {"00000.bin": "validation", "00001.bin": "test"}.get(name, "train")


def make(folder: Path, tokens: int) -> Prepared:
    """Prepare a data set of about `tokens` tokens, most of them for training."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(max(8, tokens // FILE_TOKENS)):
        (raw / f"{number:05}.bin").write_bytes(
            rng.integers(0, 50_000, FILE_TOKENS, dtype=np.uint16).tobytes()
        )
    rows = BLOCK_BYTES // (2 * (CONTEXT + 1))
    prepared = prepare(
        find_source(str(raw)),
        Words(),
        folder / "cache",
        name="words",
        rule=FirstTwo(),
        pack=CONTEXT,
        rows_per_block=rows,
        via="here",
    )
    for path in raw.iterdir():
        path.unlink()
    return prepared


def ours(data: Prepared, order: Order, batch: int, batches: int) -> Iterator[Any]:
    """Batches in the step loop's way, with memory for two windows, or for all data in a full shuffle."""
    import torch

    blocks = data.blocks("train", memory=MEMORY if isinstance(order, WindowOrder) else data.manifest.bytes())
    for number in range(batches):
        position = number * batch
        blocks.prefetch(order.upcoming(position, 2 * batch))
        yield torch.from_numpy(blocks.rows(order.indices(position, batch), np.int64)["tokens"])
    blocks.close()


class Mapped:
    """All blocks of the training split, mapped once, as a Dataset of batches."""

    def __init__(self, data: Prepared) -> None:
        blocks = data.blocks("train")
        self.rows, self.size = blocks.rows_per_block, blocks.size
        self.parts = [blocks.block(number)["tokens"] for number in range(len(blocks.entries))]

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices: list[int]) -> Any:
        import torch

        out = np.empty((len(indices), CONTEXT + 1), dtype=np.int64)
        blocks, rows = np.divmod(np.asarray(indices), self.rows)
        if GROUP * len(np.unique(blocks)) > len(indices):
            for place, (block, row) in enumerate(zip(blocks.tolist(), rows.tolist(), strict=True)):
                out[place] = self.parts[block][row]
            return torch.from_numpy(out)
        places = np.argsort(blocks, kind="stable")
        for group in np.split(places, np.flatnonzero(np.diff(blocks[places])) + 1):
            out[group] = self.parts[blocks[group[0]]][rows[group]]
        return torch.from_numpy(out)


class Batches:
    """The sampler: batches of an order."""

    def __init__(self, order: Order, batch: int, batches: int) -> None:
        self.order, self.batch, self.batches = order, batch, batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.batches):
            yield self.order.indices(number * self.batch, self.batch)


def loader(data: Prepared, order: Order, batch: int, batches: int, workers: int) -> Iterator[Any]:
    """The same batches from a DataLoader that fetches whole batches from mapped files."""
    from torch.utils.data import DataLoader

    settings = {"num_workers": workers, "prefetch_factor": PREFETCH, "persistent_workers": True}
    options: dict[str, Any] = settings if workers else {}
    dataset: Any = Mapped(data)
    yield from DataLoader(
        dataset, batch_sampler=Batches(order, batch, batches), collate_fn=_identity, **options
    )


def _identity(batch: Any) -> Any:
    return batch


def rate(make_batches: Callable[[], Iterator[Any]], batch: int) -> float:
    """Million tokens per second, after the warm-up."""
    batches = make_batches()
    for _ in range(WARM_UP):
        next(batches)
    began, count = time.perf_counter(), 0
    for values in batches:
        count += values.shape[0]
    assert count % batch == 0
    return count * CONTEXT / (time.perf_counter() - began) / 1e6


def speeds(
    data: Prepared, tokens: int, rounds: int, workers: Sequence[int]
) -> dict[str, dict[str, list[float]]]:
    """Rates in million tokens per second, one per round, by batch size and side."""
    sizes = [each.rows for each in data.manifest.splits["train"]]
    orders: dict[str, Callable[[], Order]] = {
        "windowed": lambda: WindowOrder(1, sizes, WINDOW),
        "full": lambda: SampleOrder(1, sum(sizes)),
    }
    found: dict[str, dict[str, list[float]]] = {}
    for batch in BATCHES:
        count = WARM_UP + max(8, tokens // CONTEXT // batch)
        sides: dict[str, Callable[[], Iterator[Any]]] = {}
        for name, order in orders.items():
            sides[f"ours, {name}"] = partial(_ours, data, order, batch, count)
            for number in workers:
                theirs = partial(_theirs, data, order, batch, count, number)
                sides[f"DataLoader, {name}, {number} workers"] = theirs
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds):
            print(f"batch {batch}: round {number + 1}/{rounds}", file=sys.stderr)
            for name, side in list(sides.items())[:: 1 if number % 2 == 0 else -1]:
                rates[name].append(rate(side, batch))
        found[str(batch)] = rates
    return found


def _ours(data: Prepared, order: Callable[[], Order], batch: int, batches: int) -> Iterator[Any]:
    return ours(data, order(), batch, batches)


def _theirs(
    data: Prepared, order: Callable[[], Order], batch: int, batches: int, workers: int
) -> Iterator[Any]:
    return loader(data, order(), batch, batches, workers)


def child(*arguments: str) -> dict[str, Any]:
    """Run a part of this benchmark in its own process."""
    command_line = [sys.executable, "-m", "benchmarks.ingest", "--part", *arguments]
    done = subprocess.run(command_line, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def part(what: str, where: str) -> dict[str, Any]:
    """Measure in this process: its peak memory while it reads an epoch, or the time to the first batch at 90
    % of an epoch.
    """
    import psutil
    import pyarrow.fs  # noqa: F401 - imported before the measurement
    import torch  # noqa: F401 - the same

    if what == "memory":
        data, process = open_prepared(where), psutil.Process()
        sizes = [each.rows for each in data.manifest.splits["train"]]
        before = most = process.memory_info().rss
        for _ in ours(data, WindowOrder(1, sizes, WINDOW), BATCHES[-1], sum(sizes) // BATCHES[-1]):
            most = max(most, process.memory_info().rss)
        return {"mib": round(most / 2**20, 1), "grown_mib": round((most - before) / 2**20, 1)}
    began = time.perf_counter()
    data = open_prepared(where)
    blocks = data.blocks("train", memory=MEMORY)
    order = WindowOrder(1, blocks.sizes(), WINDOW)
    blocks.rows(order.indices(int(0.9 * order.size), 64))
    return {"seconds": time.perf_counter() - began, "blocks": blocks.opened, "of": len(blocks.entries)}


def memory_and_reentry(
    folder: Path, tokens: int, rounds: int
) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]], dict[str, int]]:
    """Memory with a tenth of the tokens and with all, times of re-entry with all, and MiB of both."""
    data = {"small": make(folder / "small", tokens // 10), "large": make(folder / "large", tokens)}
    memory = {name: child("memory", each.where) for name, each in data.items()}
    entries = [child("re-entry", data["large"].where) for _ in range(rounds)]
    return memory, entries, {name: round(each.manifest.bytes() / 2**20) for name, each in data.items()}


def measure(tokens: int, more: int, rounds: int, workers: Sequence[int]) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints. Rates are in million tokens per
    second, of a data set of `tokens`. Memory is of data sets of `more` tokens and a tenth.
    """
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="trainfleet-ingest-") as folder:
        rates = speeds(make(Path(folder) / "speed", tokens), tokens, rounds, workers)
        memory, entries, megabytes = memory_and_reentry(Path(folder), more, rounds)
    return {
        **command.environment(PACKAGES),
        "load_at_start": round(load, 2),
        "data": f"{tokens / 1e6:.0f} million tokens in samples of {CONTEXT}, "
        f"blocks of {BLOCK_BYTES >> 20} MiB, windows of {WINDOW}",
        "million_tokens_per_second": {
            batch: {name: _figures(each) for name, each in sides.items()} for batch, sides in rates.items()
        },
        "ratio": {batch: _ratios(sides) for batch, sides in rates.items()},
        "memory": {
            **memory,
            "data_mib": megabytes,
            "ratio": round(memory["large"]["mib"] / memory["small"]["mib"], 3),
        },
        "re_entry": {
            "seconds": _figures([each["seconds"] for each in entries]),
            "blocks opened": entries[0]["blocks"],
            "of": entries[0]["of"],
        },
        "targets": TARGETS,
    }


def _ratios(sides: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """The rate of each Trainfleet order over the fastest DataLoader of the same order and round."""
    found = {}
    for name, rates in sides.items():
        if not name.startswith("ours, "):
            continue
        start = f"DataLoader, {name.removeprefix('ours, ')}, "
        loaders = [each for other, each in sides.items() if other.startswith(start)]
        fastest = [max(each) for each in zip(*loaders, strict=True)]
        found[name] = command.summary([a / b for a, b in zip(rates, fastest, strict=True)], 3)
    return found


def _figures(values: list[float]) -> dict[str, Any]:
    return {**command.summary(values, 3), "count": len(values)}


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    command.show_environment(document)
    print(f"{document['data']}; load {document['load_at_start']} at the start\n")
    targets = document["targets"]
    print("| what | median | min | max | count | target |\n|---|---|---|---|---|---|")
    for batch, sides in document["million_tokens_per_second"].items():
        for name, row in sides.items():
            cells = " | ".join(f"{row[key]:.0f}" for key in ("median", "least", "most"))
            print(f"| million tokens/s, batch {batch}, {name} | {cells} | {row['count']} | |")
    for batch, ratios in document["ratio"].items():
        for name, row in ratios.items():
            what = f"{name} / fastest DataLoader in the same order, batch {batch}"
            cells = " | ".join(f"{row[key]:.2f}" for key in ("median", "least", "most"))
            print(f"| {what} | {cells} | | >= {targets['speed']} |")
    memory = document["memory"]
    for name in ("small", "large"):
        row = memory[name]
        read = f"reading {memory['data_mib'][name]} MiB (grew by {row['grown_mib']})"
        print(f"| peak resident memory, MiB, {read} | {row['mib']} | | | | |")
    ratio = f"{memory['ratio']:.3f} | | | | <= {targets['memory']}"
    print(f"| peak resident memory, ten times the data / once | {ratio} |")
    row = document["re_entry"]["seconds"]
    cells = " | ".join(f"{row[key]:.3f}" for key in ("median", "least", "most"))
    print(f"| re-entry at 90 % of an epoch, s | {cells} | {row['count']} | <= {targets['re-entry']:g} |")


def _chosen(_: str, smoke: bool) -> dict[str, Any]:
    if smoke:
        return measure(20 << 20, 20 << 20, 1, (0, 1))
    return measure(100 << 20, 400 << 20, 5, (0, 1, 2))


def main() -> int:
    """Measure and print."""
    if sys.argv[1:2] == ["--part"]:
        print(json.dumps(part(*sys.argv[2:4])))
        return 0
    return command.run(__doc__, "", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
