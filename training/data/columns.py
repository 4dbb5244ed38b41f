"""Columns of a sample: declared types and shapes, and how Arrow arrays store them.

A column of a fixed shape is one block of memory that numpy slices without a copy. A column whose first
dimension is None (ragged) is read sample by sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNSHAPED = ("string", "bytes")


@dataclass(frozen=True)
class Column:
    """One column of every sample.

    Attributes:
        dtype: a numpy type by name (`float32`, `int64`, `uint8`, ...), or `string`, or `bytes`.
        shape: of one sample; `None` as its first size if samples differ in length. () is a scalar.
    """

    dtype: str
    shape: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in UNSHAPED:
            np.dtype(self.dtype)
            if self.dtype in ("bool", "object") or any(size is None for size in self.shape[1:]):
                raise ValueError(
                    f"{self}: bool is not supported (use uint8), and only the first size may be None"
                )
        elif self.shape:
            raise ValueError(f"{self}: text and bytes have no shape")

    @property
    def unshaped(self) -> bool:
        return self.dtype in UNSHAPED

    @property
    def ragged(self) -> bool:
        return bool(self.shape) and self.shape[0] is None

    @property
    def inner(self) -> tuple[int, ...]:
        """The fixed sizes."""
        return tuple(size for size in self.shape if size is not None)

    def document(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": list(self.shape)}

    def mismatch(self, value: Any) -> str | None:
        """Why a value does not fit this column: wrong type, wrong shape, or NaN or Inf values."""
        if self.unshaped:
            expected = str if self.dtype == "string" else bytes
            return (
                None
                if isinstance(value, expected)
                else f"is {type(value).__name__} instead of {expected.__name__}"
            )
        if not self.shape and isinstance(value, int | float) and not isinstance(value, bool):
            value = (
                np.asarray(value, dtype=self.dtype)
                if _fits(value, np.dtype(self.dtype))
                else np.asarray(value)
            )
        array = np.asarray(value)
        if array.dtype != np.dtype(self.dtype):
            return f"is {array.dtype} instead of {self.dtype}"
        if len(array.shape) != len(self.shape) or any(
            have != want for have, want in zip(array.shape, self.shape, strict=True) if want is not None
        ):
            expected_shape = ["any" if size is None else size for size in self.shape]
            return f"has the shape {list(array.shape)} instead of {expected_shape}"
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            bad = int(array.size - np.isfinite(array).sum())
            return f"holds {bad} NaN or Inf value{'s' if bad > 1 else ''}"
        return None

    def arrow(self, values: Sequence[Any]) -> Any:
        """The values of many samples as one Arrow array."""
        import pyarrow as pa

        if self.unshaped:
            return pa.array(values, type=pa.large_string() if self.dtype == "string" else pa.large_binary())
        if not self.shape:
            return pa.array(np.asarray(values, dtype=self.dtype))
        if not self.ragged:
            return fixed(np.stack(values) if len(values) else np.zeros((0, *self.inner), self.dtype))
        lengths = [len(value) * math.prod(self.inner) for value in values]
        flat = (
            np.concatenate([np.ravel(value) for value in values]) if len(values) else np.zeros(0, self.dtype)
        )
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat))

    def read(self, array: Any) -> NDArray[Any] | Ragged | list[Any]:
        """View an Arrow array's memory without a copy (text and bytes are copied)."""
        if self.unshaped:
            return list(array.to_pylist())
        if not self.shape:
            return _memory(array)
        if self.ragged:
            return Ragged(_memory(array.values), _memory(array.offsets), self.inner)
        return _memory(array.flatten()).reshape(-1, *self.inner)


class Ragged:
    """Samples of different lengths, concatenated in memory."""

    def __init__(self, flat: NDArray[Any], offsets: NDArray[np.int64], inner: tuple[int, ...]) -> None:
        self._flat, self._offsets, self._inner = flat, offsets, inner

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        piece = self._flat[self._offsets[row] : self._offsets[row + 1]]
        return piece.reshape(-1, *self._inner) if self._inner else piece


def fixed(values: NDArray[Any]) -> Any:
    """Samples [n, ...] of one shape as an Arrow array of fixed-size lists."""
    import pyarrow as pa

    size = math.prod(values.shape[1:])
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), size)


def columns_of(document: Mapping[str, Mapping[str, Any]]) -> dict[str, Column]:
    """Columns as `Column.document` wrote them."""
    return {name: Column(each["dtype"], tuple(each["shape"])) for name, each in document.items()}


def _memory(array: Any) -> NDArray[Any]:
    """An Arrow array's memory as numpy. `to_numpy` would import pandas, which slows the start of workers."""
    return np.from_dlpack(array)


def _fits(value: float, dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return isinstance(value, int) and limits.min <= value <= limits.max
    return dtype.kind == "f"
