"""What a fuzz target consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from trainfleet.errors import TrainfleetError


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        title: what is read, for the table in docs/security.md.
        inputs: a function, since strategies read files.
        call: gets an input and an empty folder, in which alone it may write.
        rejects: what it raises for rejected input.
        examples: inputs that failed once, tried each time.
        slow: only in `make test-deep`, because it needs a trained model.
    """

    title: str
    inputs: Callable[[], st.SearchStrategy[Any]]
    call: Callable[[Any, Path], object]
    rejects: tuple[type[Exception], ...] = (TrainfleetError,)
    examples: tuple[Any, ...] = field(default=())
    slow: bool = False


def written(name: str, raw: bytes, folder: Path) -> Path:
    """A file with these bytes."""
    file = folder / name
    file.write_bytes(raw)
    return file
