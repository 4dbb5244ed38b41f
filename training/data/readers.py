"""One reader per kind of raw file: bytes to rows, or to a message about what is wrong with them.

Ranges of large text are cut by bytes but read by lines: a range starts after the first line end past its
start and ends at the first line end past its end, so that each line is read once.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.training.data.bad_rows import BadInput

Row = dict[str, Any]
_LINE = 1 << 16


class UnreadableError(Exception):
    """Raised for a file that is truncated or has another format or schema; the message is the reason."""


def text(system: Any, path: str, name: str, start: int, end: int) -> Iterator[Row]:
    """One document, or its lines that begin between two bytes. `last` is true for the last piece."""
    with _opened(system, path) as file:
        size = file.size()
        first, beyond = _lines_between(file, start, end)
        file.seek(first)
        yield {
            "name": name,
            "text": file.read(beyond - first),
            "last": beyond >= size and (end < 0 or end >= size),
        }


def json_lines(
    system: Any, path: str, name: str, start: int, end: int, *, columns: Sequence[str]
) -> Iterator[Row | BadInput]:
    """A row per line; its name ends in the byte offset of the line.

    Args:
        system: a pyarrow or fsspec filesystem.
        path: path of the file in it.
        name: name of the file in messages and rows.
        start: start of the range of lines, in bytes.
        end: its end, in bytes; -1 for the end of the file.
        columns: names that every row must have.
    """
    with _opened(system, path) as file:
        first, beyond = _lines_between(file, start, end)
        file.seek(first)
        place = first
        for line in file.read(beyond - first).splitlines(keepends=True):
            where, place = f"{name}@{place}", place + len(line)
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if b"\\ud" in line.lower():  # half of a surrogate pair, which no tokenizer accepts
                    json.dumps(row, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                yield BadInput(where, "has half of a surrogate pair, which is not Unicode text")
                continue
            except (ValueError, RecursionError):
                yield BadInput(where, "is not JSON")
                continue
            if not isinstance(row, dict):
                yield BadInput(where, "is not a JSON object")
            elif missing := [column for column in columns if column not in row]:
                yield BadInput(where, f"has no {', '.join(missing)}")
            else:
                yield {**row, "name": where}


def row_groups(system: Any, path: str, size: int, unit_bytes: int) -> list[tuple[int, int, int]]:
    """Row groups of a parquet file in runs of about `unit_bytes`: first, end, bytes.

    A torn file is one run; reading it reports the error.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with system.open_input_file(path) as file:
            metadata = parquet.read_metadata(file)
    except (pa.ArrowInvalid, OSError):
        return [(0, -1, size)]
    runs, start, size_so_far = [], 0, 0
    for group in range(metadata.num_row_groups):
        size_so_far += metadata.row_group(group).total_byte_size
        if size_so_far >= unit_bytes or group == metadata.num_row_groups - 1:
            runs.append((start, group + 1, size_so_far))
            start, size_so_far = group + 1, 0
    return runs or [(0, -1, size)]


def parquet(
    system: Any, path: str, name: str, start: int, end: int, *, columns: Sequence[str]
) -> Iterator[Row]:
    """Rows of some row groups, named by their index in the file.

    Args:
        system: a pyarrow or fsspec filesystem.
        path: path of the file in it.
        name: name of the file in messages and rows.
        start: first row group.
        end: row group after the last one; -1 for all.
        columns: names of the columns to read, which the file must have; empty for all.
    """
    import pyarrow as pa
    from pyarrow import parquet as pq

    try:
        with _opened(system, path) as handle:
            file = pq.ParquetFile(handle)
            have = file.schema_arrow.names
            if missing := [column for column in columns if column not in have]:
                raise UnreadableError(f"has no column {', '.join(missing)}, only {', '.join(have)}")
            groups = range(start, file.num_row_groups if end < 0 else end)
            number = sum(file.metadata.row_group(group).num_rows for group in range(start))
            if not file.metadata.num_rows:
                raise UnreadableError("holds no rows")
            for batch in file.iter_batches(
                row_groups=list(groups), columns=list(columns) or None, batch_size=4096
            ):
                for row in batch.to_pylist():
                    yield {**row, "name": f"{name}#{number}"}
                    number += 1
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise UnreadableError(f"is not a parquet file, or is truncated ({_first_line(error)})") from error


def audio(system: Any, path: str, name: str) -> Row:
    """Samples (float32, [time] or [time, channels]), rate in Hz, and text of a .txt file of the same name."""
    with _opened(system, path) as file:
        samples, rate = decode_audio(file.read())
    row: Row = {"name": name, "audio": samples, "rate": rate}
    transcript = str(PurePosixPath(path).with_suffix(".txt"))
    if system.get_file_info(transcript).is_file:
        with _opened(system, transcript) as file:
            row["text"] = file.read().decode("utf-8", "replace").strip()
    return row


def image(system: Any, path: str, name: str) -> Row:
    """Pixels (uint8, [height, width] or [height, width, channels]), and the folder's name as label."""
    with _opened(system, path) as file:
        return {"name": name, "image": decode_image(file.read()), "label": PurePosixPath(path).parent.name}


def decode_audio(data: bytes) -> tuple[Any, int]:
    """Samples and rate.

    Raises:
        UnreadableError: the bytes are not audio, are truncated, or hold no samples.
    """
    try:
        import soundfile
    except ImportError as error:
        raise MissingToolError(
            "soundfile is not installed",
            [Problem("", "reading audio requires it", "pip install trainfleet[speech]")],
        ) from error
    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    except (soundfile.LibsndfileError, RuntimeError) as error:
        raise UnreadableError(f"is not audio, or is truncated ({_first_line(error)})") from error
    if not len(samples):
        raise UnreadableError("holds no samples")
    declared = _wave_bytes(data)
    if declared > len(data):
        raise UnreadableError(f"is truncated: {len(data)} of {declared} bytes")
    return samples, int(rate)


def decode_image(data: bytes) -> Any:
    """Pixels as an array.

    Raises:
        UnreadableError: the bytes are not an image, or are truncated.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingToolError(
            "Pillow is not installed", [Problem("", "reading images requires it", "pip install pillow")]
        ) from error
    import numpy as np

    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            return np.asarray(image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UnreadableError(f"is not an image, or is truncated ({_first_line(error)})") from error


def is_saved_dataset(where: str) -> bool:
    """Whether a folder was written by Hugging Face's `save_to_disk`."""
    folder = Path(where)
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def dataset_parts(where: str, unit_bytes: int) -> tuple[list[tuple[str, int, int, int]], str]:
    """Ranges of rows of each split of a Hugging Face dataset (split, first, end, bytes), and a key of them
    all.
    """
    parts, prints = [], []
    for split, data in sorted(_splits(where).items()):
        each = max(1, (data.data.nbytes or 1) // max(1, len(data)))
        step = max(1, unit_bytes // each)
        parts += [
            (split, start, min(start + step, len(data)), each * min(step, len(data) - start))
            for start in range(0, len(data), step)
        ]
        prints.append(f"{split}:{len(data)}:{data._fingerprint}")
    return parts, "|".join(prints)


def dataset(where: str, split: str, start: int, end: int, columns: Sequence[str]) -> Iterator[Row | BadInput]:
    """Rows of a Hugging Face dataset with decoded audio and images; the sampling rate is in `rate`.

    Keeps the dataset's own splits, except a training split that must also supply a missing validation or
    test split.
    """
    import datasets

    splits = _splits(where)
    data = splits[split]
    own = {"validation", "test"} | ({"train"} if {"train", "validation", "test"} <= set(splits) else set())
    if missing := [column for column in columns if column not in data.column_names]:
        raise UnreadableError(f"has no column {', '.join(missing)}, only {', '.join(data.column_names)}")
    kinds = {}
    for name, feature in data.features.items():
        if isinstance(feature, datasets.Audio | datasets.Image):
            kinds[name] = "audio" if isinstance(feature, datasets.Audio) else "image"
            data = data.cast_column(name, type(feature)(decode=False))
    if columns:
        data = data.select_columns(list(columns))
    for number in range(start, end):
        row: Row = {**data[number], "name": f"{split}#{number}"}
        if split in own:
            row["split"] = split
        try:
            for name, kind in kinds.items():
                if name in row:
                    _decode(row, name, kind)
        except UnreadableError as error:
            yield BadInput(f"{where}/{row['name']}", f"{name}: {error}")
            continue
        yield row


def _decode(row: Row, name: str, kind: str) -> None:
    value = row[name]
    if value is None:
        raise UnreadableError("is null")
    data = value["bytes"] if value.get("bytes") is not None else _read_local(value["path"])
    if kind == "audio":
        row[name], row["rate"] = decode_audio(data)
    else:
        row[name] = decode_image(data)


def _splits(where: str) -> dict[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise MissingToolError(
            "datasets is not installed",
            [Problem(where, "reading it requires datasets", "pip install trainfleet[hf]")],
        ) from error
    try:
        name, _, config = where.removeprefix("hf:").partition("@")
        loaded = (
            datasets.load_dataset(name, config or None)
            if where.startswith("hf:")
            else datasets.load_from_disk(where)
        )
    except (OSError, ValueError, RuntimeError) as error:
        # RuntimeError: a dataset script, which `datasets` rejects since 4.0
        raise InputError(
            "cannot open the dataset",
            [Problem(where, _first_line(error), "use a folder of save_to_disk, hf:NAME or hf:NAME@CONFIG")],
        ) from error
    return dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {"all": loaded}


def _read_local(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnreadableError(f"cannot be read ({error.strerror})") from error


def _opened(system: Any, path: str) -> Any:
    try:
        return system.open_input_file(path)
    except OSError as error:
        raise UnreadableError(f"cannot be opened ({_first_line(error)})") from error


def _lines_between(file: Any, start: int, end: int) -> tuple[int, int]:
    """Start of the first line that begins after `start`, and end of the last one that begins up to `end`."""
    size = int(file.size())
    return _line_after(file, start, size) if start else 0, size if end < 0 else _line_after(file, end, size)


def _line_after(file: Any, place: int, size: int) -> int:
    if place >= size:
        return size
    file.seek(place - 1)
    while piece := file.read(_LINE):
        ending = piece.find(b"\n")
        if ending >= 0:
            return int(file.tell() - len(piece) + ending + 1)
    return size


def _wave_bytes(data: bytes) -> int:
    """Size in the header of a WAV file; libsndfile reads a shorter file silently. 0 if unknown or not WAV."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return 0
    declared = int.from_bytes(data[4:8], "little")
    return 0 if declared >= 0xFFFFFFFF - 8 else declared + 8


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
