"""Transforms for tests, in their own module so that other processes can import them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainfleet.training.data import BadInput, BadRowError, Column, Row


@dataclass(frozen=True)
class Measured:
    """Represents a text by its length, first bytes, name and a small matrix: one column of each kind."""

    key: str = "measured 1"

    @property
    def columns(self) -> Mapping[str, Column]:
        return {
            "length": Column("int64"),
            "start": Column("uint8", (None,)),
            "name": Column("string"),
            "matrix": Column("float32", (2, 3)),
        }

    def __call__(self, rows: Sequence[Row]) -> list[Mapping[str, Any] | BadInput | None]:
        return [self._one(row) for row in rows]

    def _one(self, row: Row) -> Mapping[str, Any] | BadInput | None:
        text = row["text"]
        if text.startswith(b"skip"):
            return None
        if text.startswith(b"bad"):
            return BadInput(row["name"], "says that it is bad")
        value = np.nan if text.startswith(b"nan") else len(text)
        matrix = np.full((2, 3), value, dtype=np.float64 if text.startswith(b"double") else np.float32)
        return {
            "length": len(text),
            "start": np.frombuffer(text[: len(text) % 7], dtype=np.uint8),
            "name": row["name"],
            "matrix": matrix,
        }


@dataclass(frozen=True)
class Killed(Measured):
    """As Measured, but the first `times` other processes that reach a text named `at` are killed there."""

    folder: str = ""
    at: str = ""
    times: int = 1
    spared: int = 0
    """A process that is not killed: the one that asks for the work."""

    def __call__(self, rows: Sequence[Row]) -> list[Mapping[str, Any] | BadInput | None]:
        if os.getpid() != self.spared and any(self.at in row["name"] for row in rows):
            for number in range(self.times):
                with suppress(FileExistsError):
                    (Path(self.folder) / f"killed-{number}").touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(rows)


@dataclass(frozen=True)
class Bytes:
    """A stream of bytes, for packing."""

    key: str = "bytes 1"

    @property
    def columns(self) -> Mapping[str, Column]:
        return {"tokens": Column("uint8", (None,))}

    def __call__(self, rows: Sequence[Row]) -> list[Mapping[str, Any] | BadInput | None]:
        return [{"tokens": np.frombuffer(row["text"], dtype=np.uint8)} for row in rows]


def number(row: Row) -> Mapping[str, Any]:
    """The number of a row; rejects negative numbers."""
    if row["value"] < 0:
        raise BadRowError("is negative")
    return {"value": row["value"]}
