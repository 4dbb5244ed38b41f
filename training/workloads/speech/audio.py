"""Turns recordings and transcripts into blocks: one channel, one rate, 16 bits, once per machine.

Common Voice comes as a Hugging Face dataset (`hf:NAME@de`) or as the folder that Mozilla distributes
(train.tsv, dev.tsv, test.tsv and clips).
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.training.data import (
    BadInput,
    Column,
    Integrity,
    Prepared,
    Row,
    Source,
    SplitRule,
    find_source,
    prepare,
    prepared_source,
)
from trainfleet.training.data.progress import progress_reporter
from trainfleet.training.data.readers import UnreadableError, decode_audio
from trainfleet.training.workloads.speech.settings import SoundSettings
from trainfleet.training.workloads.speech.synthetic_speech import listing, speak

SYNTHETIC = "spoken"
_COMMON_VOICE = {"train.tsv": "train", "dev.tsv": "validation", "test.tsv": "test"}


@dataclass(frozen=True)
class AudioTransform:
    """The transform that `prepare` runs: rows to 16-bit audio at one rate, and transcripts."""

    audio: str
    text: str
    rate: int
    shortest: float
    longest: float

    columns = {"audio": Column("int16", (None,)), "text": Column("string")}

    @property
    def key(self) -> str:
        return f"sounds 3 {self.audio} {self.text} {self.rate} {self.shortest} {self.longest}"

    def __call__(self, rows: Sequence[Row]) -> list[Mapping[str, Any] | BadInput | None]:
        return [self._one(row) for row in rows]

    def _one(self, row: Row) -> Mapping[str, Any] | BadInput | None:
        text = row.get(self.text)
        if not isinstance(text, str) or not text.strip():
            return BadInput(row["name"], f"has no {self.text}")
        try:
            if "voice" in row:
                spoken, rate = speak(text, row["voice"], row["speed"])
                sound: NDArray[np.float32] = spoken.astype(np.float32) / np.float32(32768)
            else:
                sound, rate = to_mono(row.get(self.audio), row.get("rate"))
        except UnreadableError as error:
            return BadInput(row["name"], str(error))
        if not self.shortest <= len(sound) / rate <= self.longest:
            return None
        return {"audio": as_int16(resampled(sound, rate, self.rate)), "text": " ".join(text.split())}


def audio_blocks(settings: SoundSettings, cache: Path) -> Prepared:
    """The prepared audio. Audio that the source holds prepared is only opened.

    Raises:
        InputError: there is none, some cannot be used, or the prepared audio has another rate or other
            lengths.
    """
    if settings.source != SYNTHETIC:
        expected = {key: getattr(settings, key) for key in ("rate", "shortest", "longest")}
        found = prepared_source(settings.source, AudioTransform.columns, settings=expected)
        if found is not None:
            return found
    return prepare(
        _source(settings, cache),
        AudioTransform(settings.audio, settings.text, settings.rate, settings.shortest, settings.longest),
        cache,
        name="sounds",
        rule=SplitRule(settings.validation_share, settings.test_share, settings.split_seed),
        integrity=Integrity(settings.integrity, settings.quarantine_limit),
        settings=settings.model_dump(mode="json"),
        store=settings.store,
        progress=progress_reporter("sounds"),
    )


def to_mono(held: Any, rate: Any = None) -> tuple[NDArray[np.float32], int]:
    """Mono samples from -1 to 1 and their rate, from samples with a rate, an encoded file, or its path.

    Raises:
        UnreadableError: the value is not audio.
    """
    if isinstance(held, Mapping):  # as Hugging Face datasets store audio
        rate = held.get("sampling_rate", rate)
        held = next((held[key] for key in ("array", "bytes", "path") if held.get(key) is not None), None)
    if isinstance(held, str | Path):
        try:
            held = Path(held).read_bytes()
        except OSError as error:
            raise UnreadableError(f"cannot be read ({error.strerror})") from error
    if isinstance(held, bytes):
        held, rate = decode_audio(held)
    try:
        sound = np.asarray(held)
    except ValueError as error:
        raise UnreadableError("is not audio") from error
    if sound.dtype.kind not in "fi" or sound.ndim not in (1, 2) or not len(sound):
        raise UnreadableError(
            f"is not audio: {sound.dtype} {list(sound.shape)} instead of samples [time] or [time, channels]"
        )
    if not isinstance(rate, int) or rate <= 0:
        raise UnreadableError("has no rate in Hz")
    sound = sound.astype(np.float32) / (np.iinfo(sound.dtype).max + 1.0 if sound.dtype.kind == "i" else 1.0)
    if not np.isfinite(sound).all():
        raise UnreadableError("holds NaN or Inf samples")
    return (sound if sound.ndim == 1 else sound.mean(axis=1)).astype(np.float32), rate


def resampled(sound: NDArray[np.float32], rate: int, target_rate: int) -> NDArray[np.float32]:
    """Resample by the spectrum: exact below both Nyquist frequencies."""
    if rate == target_rate or not len(sound):
        return sound
    common = math.gcd(rate, target_rate)
    times = _smooth(-(-len(sound) // (rate // common)))  # zero-padded to a length with a fast transform
    before, after = times * (rate // common), times * (target_rate // common)
    spectrum = np.fft.rfft(sound.astype(np.float64), before)[: after // 2 + 1]
    longer = np.fft.irfft(spectrum, after) * (after / before)
    return longer[: max(1, round(len(sound) * target_rate / rate))].astype(np.float32)


def _smooth(least: int) -> int:
    """The smallest number >= `least` without a prime factor above 5."""
    number = least
    while True:
        rest = number
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return number
        number += 1


def as_int16(sound: NDArray[np.float32]) -> NDArray[np.int16]:
    return np.clip(np.round(sound * 32768), -32768, 32767).astype(np.int16)


def _source(settings: SoundSettings, cache: Path) -> Source:
    try:
        if settings.source == SYNTHETIC:
            return find_source(_cached_listing(cache, "spoken", listing(settings)), unit_bytes=64 << 10)
        folder = Path(settings.source)
        if (folder / "train.tsv").is_file() and (folder / "clips").is_dir():
            return find_source(
                _cached_listing(cache, "common-voice", "".join(_common_voice(folder, settings))),
                unit_bytes=256 << 10,
            )
        found = find_source(settings.source, settings.glob, keep=lambda name: not name.endswith(".txt"))
        if found.units and all(piece.kind == "parquet" for unit in found.units for piece in unit.pieces):
            return find_source(
                settings.source,
                settings.glob,
                columns=(settings.audio, settings.text),
                keep=lambda name: not name.endswith(".txt"),
            )
        return found
    except InputError as error:
        problems = [
            Problem(f"workload.data.source {each.where}", each.what, each.fix) for each in error.problems
        ]
        raise InputError("there is no speech to train on", problems) from error


def _cached_listing(cache: Path, name: str, content: str) -> str:
    """A listing as a cache file named by its content, so that its rows keep their names."""
    path = cache / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:20]}.jsonl"
    if not path.is_file():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
        except OSError as error:
            fix = "set TRAINFLEET_CACHE to a writable folder"
            raise InputError(
                "cannot prepare the data", [Problem(str(cache), error.strerror or str(error), fix)]
            ) from error
    return str(path)


def _common_voice(folder: Path, settings: SoundSettings) -> Iterator[str]:
    """The rows of Mozilla's tables as JSON lines; the tables are the splits."""
    for name, split in _COMMON_VOICE.items():
        if not (folder / name).is_file():
            continue
        with (folder / name).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                clip = str(folder.absolute() / "clips" / (row.get("path") or ""))
                yield (
                    json.dumps(
                        {settings.audio: clip, settings.text: row.get("sentence"), "split": split},
                        ensure_ascii=False,
                    )
                    + "\n"
                )
