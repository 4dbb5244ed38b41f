"""Speed of building batches ahead: processes of Ray, threads, and the step loop itself, for speech features.

    python -m benchmarks.input_engines [--smoke] [--json]

The workload is `speech` with its features computed on the fly: each utterance is resampled to one of three
speeds (speed perturbation), converted to log-mel frames, and masked in time and frequency (SpecAugment). All
draws are seeded by the sample's index. A step takes a batch and then sleeps as long as building a batch takes
in the loop, in the place of a GPU; without that sleep, the input alone is measured. The engines alternate,
each round in the other order, so that other load slows all. Their batches must be equal bit for bit. Starting
Ray and its processes is not timed. Two processes and a loop need three CPUs: on fewer, they share them.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks import command
from trainfleet.errors import TrainfleetError
from trainfleet.training.data import SampleOrder
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime.ray_cluster import connect
from trainfleet.training.trainer.batch_loader import BatchLoader
from trainfleet.training.workloads import Split, Workload, make_workload
from trainfleet.training.workloads.speech.asr_models import pad_audio, pad_targets
from trainfleet.training.workloads.speech.audio import as_int16, resampled
from trainfleet.training.workloads.speech.conformer import log_mel
from trainfleet.training.workloads.speech.settings import SpeechSettings
from trainfleet.training.workloads.speech.workload import Speech

NAME = "benchmarks.input_engines:Features"
SPEEDS = ((9, 10), (1, 1), (11, 10))
"""Rates before and after the resampling (Ko et al. 2015, Audio Augmentation for Speech Recognition)."""
MASKS, LONGEST_TIME, LONGEST_BANDS = 2, 40, 10
"""Masks of each kind, and the longest, in frames and bands. Source: SpecAugment (Park et al. 2019)."""
MELS, BATCH = 80, 16
WARM_UP = 2
"""Steps that are not timed, besides those of twice what is built ahead."""
ENGINES = ("loop", "threads", "ray")
PACKAGES = ("torch", "numpy", "ray")


class Features(Speech):
    """Batches hold `frames`, float32 [B, F, 80], `count`, the number of frames [B], and `target`."""

    class Settings(SpeechSettings):
        name: Literal["benchmarks.input_engines:Features"]  # type: ignore[assignment]  # another literal

    thread_safe_batch = True

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        rows = self._blocks[split].rows(indices)
        sounds, draws = [], [np.random.default_rng(index) for index in indices]
        for sound, draw in zip(rows["audio"], draws, strict=True):
            before, after = SPEEDS[int(draw.integers(len(SPEEDS)))]
            sounds.append(as_int16(resampled(sound.astype(np.float32) / np.float32(32768), before, after)))
        lengths = torch.tensor([len(each) for each in sounds])
        frames, counts = log_mel(pad_audio(sounds) / 32768, lengths, self.settings.data.rate, MELS)
        for row, count, draw in zip(frames, counts.tolist(), draws, strict=True):
            for _ in range(MASKS):
                start, size = int(draw.integers(count)), int(draw.integers(LONGEST_TIME))
                row[start : start + size] = 0.0
                start, size = int(draw.integers(MELS)), int(draw.integers(LONGEST_BANDS))
                row[:, start : start + size] = 0.0
        target = pad_targets([self.recogniser.targets(text) for text in rows["text"]])
        return {"frames": frames, "count": counts, "target": target}


def recipe_for(engine: str, workers: int, utterances: int) -> Recipe:
    """The recipe of one engine."""
    loading = {
        "loop": ("data_loading.workers=0",),
        "threads": (f"data_loading.workers={workers}",),
        "ray": ("data_loading.engine=ray", f"data_loading.workers={workers}"),
    }
    data = (f"workload.name={NAME}", f"workload.data.utterances={utterances}", "workload.data.longest=20")
    return load_recipe("speech-small", [*data, *loading[engine], "scaling.workers=1", "scaling.threads=1"])


def steps(
    recipe: Recipe, workload: Workload, cache: Path, batches: int, compute: float
) -> tuple[list[float], list[float], str]:
    """Seconds of each step, and of its wait for the batch, after a warm-up; and a digest of all batches."""
    loader = BatchLoader(recipe, workload, "cpu", lambda *_: None, lambda *_: None, cache=cache)
    order = SampleOrder(1, workload.size("train"))
    taken = WARM_UP + 2 * loader.depth + batches
    # Those after the last one are built too: as many batches are ready at the end as at the start.
    asked = [order.indices(number * BATCH, BATCH) for number in range(taken + loader.depth)]
    digest, took, waits = hashlib.sha256(), list[float](), list[float]()
    try:
        for number, indices in enumerate(asked[:taken], start=1):
            began = time.perf_counter()
            batch = loader.take("train", indices, asked[number:])
            waited = time.perf_counter() - began
            if compute:
                time.sleep(compute)
            if number > taken - batches:
                took.append(time.perf_counter() - began)
                waits.append(waited)
            if number <= batches:
                for value in batch.values():
                    digest.update(value.numpy().tobytes())
    finally:
        loader.close()
    return took, waits, digest.hexdigest()


def measure(utterances: int, batches: int, rounds: int, workers: int) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints. Times are in seconds per step.

    Raises:
        TrainfleetError: the engines did not build the same batches.
    """
    load = os.getloadavg()[0]
    recipes = {engine: recipe_for(engine, workers, utterances) for engine in ENGINES}
    with tempfile.TemporaryDirectory(prefix="trainfleet-engines-") as folder:
        cache = Path(folder)
        workload = make_workload(recipes["loop"], cache)
        alone, _, digest = steps(recipes["loop"], workload, cache, batches, 0.0)
        building = sorted(alone)[len(alone) // 2]
        loads = {"input alone": 0.0, "with a step": building}
        found: dict[str, dict[str, list[tuple[float, float]]]] = {
            what: {engine: [] for engine in ENGINES} for what in loads
        }
        with connect(recipes["ray"].scaling, {}, recipes["ray"].data_loading):
            for number in range(rounds):
                for what, compute in loads.items():
                    for engine in ENGINES[:: 1 if number % 2 == 0 else -1]:
                        print(f"round {number + 1}/{rounds}: {what}, {engine}", file=sys.stderr)
                        took, waits, seen = steps(recipes[engine], workload, cache, batches, compute)
                        if seen != digest:
                            raise TrainfleetError(f"the batches of `{engine}` differ from the loop's")
                        found[what][engine].append((sum(took) / len(took), sum(waits) / sum(took)))
    return {
        **command.environment(PACKAGES),
        "load_at_start": round(load, 2),
        "data": f"{utterances} utterances, {batches} batches of {BATCH}, {workers} processes or threads",
        "build_seconds": round(building, 4),
        "seconds_per_step": _summaries(found, 0, 4),
        "data_wait": _summaries(found, 1, 3),
        "speedup": {what: speedups(sides) for what, sides in found.items()},
    }


def _summaries(
    found: dict[str, dict[str, list[tuple[float, float]]]], place: int, digits: int
) -> dict[str, dict[str, dict[str, float]]]:
    return {
        what: {
            engine: command.summary([each[place] for each in rounds], digits)
            for engine, rounds in sides.items()
        }
        for what, sides in found.items()
    }


def speedups(sides: dict[str, list[tuple[float, float]]]) -> dict[str, dict[str, float]]:
    """By engine, the loop's seconds over its own, of the same round."""
    return {
        engine: command.summary([a[0] / b[0] for a, b in zip(sides["loop"], rounds, strict=True)], 3)
        for engine, rounds in sides.items()
        if engine != "loop"
    }


def show(document: dict[str, Any]) -> None:
    """Print the table of docs/benchmarks.md."""
    command.show_environment(document)
    print(f"{document['data']}; load {document['load_at_start']} at the start")
    print(f"building a batch in the loop: {document['build_seconds']} s\n")
    print("| what | median | min | max |\n|---|---|---|---|")
    for what, sides in document["speedup"].items():
        for engine, row in sides.items():
            cells = " | ".join(f"{row[key]:.2f}" for key in ("median", "least", "most"))
            print(f"| {what}: seconds of the loop / seconds of {engine} | {cells} |")
    for what, sides in document["data_wait"].items():
        for engine, row in sides.items():
            cells = " | ".join(f"{row[key]:.2f}" for key in ("median", "least", "most"))
            print(f"| {what}: share of the time that the loop waits for {engine} | {cells} |")


def _chosen(_: str, smoke: bool) -> dict[str, Any]:
    if smoke:
        return measure(utterances=60, batches=12, rounds=1, workers=2)
    return measure(utterances=400, batches=100, rounds=5, workers=2)


def main() -> int:
    """Measure and print."""
    return command.run(__doc__, "", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
