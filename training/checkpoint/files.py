"""The files of a checkpoint: torch's distributed format, plain values, and a marker that is written last.

A folder without its marker is not a checkpoint. The marker has a manifest, which everything read is compared
with.
`torch.distributed.checkpoint.FileSystemReader` can read the folder too.
"""

from __future__ import annotations

import io
import json
import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import EnumMeta
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, WriteItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from trainfleet.errors import TrainfleetError
from trainfleet.training.checkpoint.errors import explain_read
from trainfleet.training.checkpoint.host_buffers import alone
from trainfleet.training.checkpoint.plan import Staged
from trainfleet.training.checkpoint.threads import in_threads
from trainfleet.training.runs.schema import MARKER
from trainfleet.training.runtime import failpoints
from trainfleet.training.runtime.collectives import Ranks
from trainfleet.training.stores import FileDigest, Store, StoreError
from trainfleet.training.stores.store import HashingOutput

FORMAT = 2
"""Version of a checkpoint folder; increase it for incompatible changes."""
METADATA, PLAIN = ".metadata", "plain.pt"
FILE_BYTES = 1 << 30
"""Approximate size of a rank's files: the amount that is written again when an upload fails."""
SPAN_BYTES, GAP_BYTES, READERS, WRITERS = 1 << 26, 1 << 20, 4, 4
_TORCH_DATA = (torch.dtype, torch.layout, torch.memory_format)
_CLASSES = {
    "torch.distributed.checkpoint.metadata": "Metadata TensorStorageMetadata BytesStorageMetadata "
    "ChunkStorageMetadata TensorProperties MetadataIndex StorageMeta"
    " _MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem": "_StorageInfo",
    "torch.serialization": "_get_layout",
    "torch": "Size",
    "collections": "OrderedDict",
}


Kept = Callable[[str], memoryview | None]
"""A file of the checkpoint that is in memory, by its name."""


class TornError(Exception):
    """Raised when a committed checkpoint differs from its manifest: a file is missing, truncated
    or altered.
    """


@dataclass(frozen=True)
class Share:
    """The files that one rank has written: manifest entries by file, and the places of its items in them."""

    files: dict[str, FileDigest]
    places: dict[Any, _StorageInfo]


def write_share(store: Store, name: str, rank: int, staged: Staged) -> Share:
    """Write one rank's items, several files at a time: one thread hashes 0.5 to 1.5 GB per second, less than
    most stores accept.

    Raises:
        StoreError: all attempts to write one of the files failed.
    """
    parts = {f"__{rank}_{number}.distcp": items for number, items in enumerate(_cut(staged))}
    places: dict[Any, _StorageInfo] = {}

    def write(file: str) -> FileDigest:
        def produce(output: HashingOutput) -> None:
            for item, data in parts[file]:
                begin = output.tell()
                if isinstance(data, bytes):
                    output.write(data)
                else:
                    torch.save(alone(data), output)  # type: ignore[arg-type]  # torch uses only write and flush
                places[item.index] = _StorageInfo(file, begin, output.tell() - begin)
                failpoints.hit("partly-written", name)

        return store.write(f"{name}/{file}", produce)

    return Share(in_threads(write, parts, WRITERS), places)


def _cut(staged: Staged) -> Iterable[Staged]:
    """Items in files of about FILE_BYTES; at least one item each."""
    part: list[tuple[WriteItem, torch.Tensor | bytes]] = []
    size = 0
    for item, data in staged:
        length = len(data) if isinstance(data, bytes) else data.nbytes
        if part and size + length > FILE_BYTES:
            yield part
            part, size = [], 0
        part.append((item, data))
        size += length
    if part:
        yield part


def commit(
    store: Store, name: str, shares: Sequence[Share], metadata: Metadata, *, plain: Any, note: dict[str, Any]
) -> None:
    """Write rank 0's files, and last the marker, which makes the checkpoint exist.

    Args:
        store: contains a folder per checkpoint.
        name: of the checkpoint.
        shares: what each rank has written.
        metadata: torch's description of all tensors.
        plain: plain values.
        note: entries for the marker.

    Raises:
        StoreError: all attempts failed; the checkpoint does not exist.
    """
    files = {file: written for share in shares for file, written in share.files.items()}
    metadata.storage_data = {index: place for share in shares for index, place in share.places.items()}
    for file, data in ((METADATA, pickle.dumps(metadata)), (PLAIN, _saved({"format": FORMAT, **plain}))):
        files[file] = store.put(f"{name}/{file}", data)
    failpoints.hit("before-marker", name)
    manifest = {
        file: {"bytes": written.bytes, "sha256": written.sha256} for file, written in sorted(files.items())
    }
    store.put(
        f"{name}/{MARKER}", json.dumps({"format": FORMAT, "note": note, "files": manifest}, indent=1).encode()
    )


def committed(store: Store) -> list[str]:
    """The names of all committed checkpoints, oldest first."""
    return sorted(
        path.partition("/")[0]
        for path in store.sizes()
        if path.count("/") == 1 and path.endswith(f"/{MARKER}")
    )


def read_marker(store: Store, name: str) -> dict[str, Any]:
    """A marker's document: `note` and `files`.

    Raises:
        TornError: it cannot be read, or has an unknown format.
        StoreError: the store does not respond.
    """
    try:
        document = json.loads(store.read(f"{name}/{MARKER}"))
        if document.get("format", 1) != FORMAT:
            raise TornError(f"has format {document.get('format', 1)}, but this version reads {FORMAT}")
        files = {
            file: {"bytes": int(entry["bytes"]), "sha256": str(entry["sha256"])}
            for file, entry in document["files"].items()
        }
        return {"note": dict(document["note"]), "files": files}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TornError(f"{MARKER} cannot be read") from error


def require_sizes(store: Store, name: str, files: dict[str, dict[str, Any]]) -> None:
    """Require that a checkpoint has the files of its manifest, with their sizes.

    Raises:
        TornError: a file differs.
        StoreError: the store does not respond.
    """
    sizes = store.sizes(name)
    for file, entry in sorted(files.items()):
        path = f"{name}/{file}"
        if path not in sizes:
            raise TornError(f"{file} is missing")
        if sizes[path] != entry["bytes"]:
            raise TornError(f"{file} has {sizes[path]} bytes instead of {entry['bytes']}")


def remove(store: Store, name: str) -> None:
    """Remove a checkpoint."""
    # NOTE: the marker first, or an interruption leaves a damaged checkpoint that counts as complete.
    store.remove([f"{name}/{MARKER}"])
    failpoints.hit("in-purge", name)
    store.remove_folder(name)


def discard_unfinished(store: Store) -> None:
    """Remove incomplete checkpoints: everything below a name without a marker."""
    paths = store.sizes()
    whole = {path.partition("/")[0] for path in paths if path.endswith(f"/{MARKER}")}
    for name in sorted({path.partition("/")[0] for path in paths if "/" in path} - whole):
        store.remove_folder(name)
    store.backend.prune()


def read_metadata(
    store: Store, name: str, ranks: Ranks | None = None, kept: Kept = lambda _: None
) -> Metadata:
    """The description of all tensors. Collective with `ranks`: rank 0 alone reads it, as it grows with their
    number. `kept`: the files that are in memory.

    Unpickling allows only torch's own classes, as a bucket's content must not be executed.
    """

    def read() -> bytes:
        if (known := kept(METADATA)) is not None:
            return bytes(known)
        content: bytes = explain_read(store.at(name), lambda: store.read(f"{name}/{METADATA}"))
        return content

    metadata: Metadata = _Metadata(io.BytesIO(ranks.on_first(read) if ranks else read())).load()
    return metadata


def read_plain(store: Store, name: str, kept: Kept = lambda _: None) -> dict[str, Any]:
    """The plain values: `shared`, and `ranks` with one entry per writing rank."""
    content = kept(PLAIN)
    plain: dict[str, Any] = torch.load(
        io.BytesIO(store.read(f"{name}/{PLAIN}") if content is None else content),
        map_location="cpu",
        weights_only=True,
    )
    return plain


class _Metadata(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member  # Python 3.11.0 to 3.11.3 (Debian 12) pickle the member of an enum like this
        if name in _CLASSES.get(module, "").split() or (
            module == "torch" and isinstance(getattr(torch, name, None), _TORCH_DATA)
        ):
            return super().find_class(module, name)
        raise TornError(f"{METADATA} refers to {module}.{name}, which does not belong to a checkpoint")


def _member(of: Any, name: str) -> Any:
    """A member of an enum; rejects any other use of `getattr`."""
    if not isinstance(of, EnumMeta) or name not in of.__members__:
        raise TornError(f"{METADATA} refers to {name} of {of}, which does not belong to a checkpoint")
    return of[name]


class Reader(StorageReader):
    """Reads the parts that a rank requests: adjacent parts in one request, several requests at a time. Parts
    of files that are in memory (`kept`) are not read again.
    """

    def __init__(self, store: Store, name: str, metadata: Metadata, kept: Kept = lambda _: None) -> None:
        self.store, self.name, self.metadata, self.kept = store, name, metadata, kept
        self.places: dict[Any, _StorageInfo] = metadata.storage_data

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing: a reader belongs to one checkpoint."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Nothing: the metadata is known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        spans = list(self._spans(plan.items))
        with ThreadPoolExecutor(min(READERS, len(spans)) or 1) as pool:
            waiting = [(span, pool.submit(self._read, span)) for span in spans[:READERS]]
            rest = iter(spans[READERS:])
            while waiting:
                span, data = waiting.pop(0)
                whole = data.result()
                if (following := next(rest, None)) is not None:
                    waiting.append((following, pool.submit(self._read, following)))
                for item in span:
                    self._give(item, whole, self.places[span[0].storage_index].offset, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, _: Any) -> bool:
        return True

    def _spans(self, items: Sequence[ReadItem]) -> Iterable[list[ReadItem]]:
        span: list[ReadItem] = []
        for item in sorted(
            items,
            key=lambda each: (
                self.places[each.storage_index].relative_path,
                self.places[each.storage_index].offset,
            ),
        ):
            place = self.places[item.storage_index]
            if span:
                first, last = self.places[span[0].storage_index], self.places[span[-1].storage_index]
                near = (
                    place.relative_path == first.relative_path
                    and place.offset - last.offset - last.length <= GAP_BYTES
                )
                if not near or place.offset + place.length - first.offset > SPAN_BYTES:
                    yield span
                    span = []
            span.append(item)
        if span:
            yield span

    def _read(self, span: list[ReadItem]) -> memoryview:
        first, last = self.places[span[0].storage_index], self.places[span[-1].storage_index]
        length = last.offset + last.length - first.offset
        if (known := self.kept(first.relative_path)) is not None:
            return known[first.offset : first.offset + length]
        return memoryview(self.store.read(f"{self.name}/{first.relative_path}", first.offset, length))

    def _give(self, item: ReadItem, whole: memoryview, begin: int, planner: LoadPlanner) -> None:
        place = self.places[item.storage_index]
        data = io.BytesIO(whole[place.offset - begin : place.offset - begin + place.length])
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, data)
            return
        try:
            tensor = torch.load(data, map_location="cpu", weights_only=True)
        except Exception as error:  # torch's advice is to execute what is in the file
            raise TornError(f"{place.relative_path} has no tensor at byte {place.offset}") from error
        for dimension, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            tensor = tensor.narrow(dimension, offset, length)
        target = planner.resolve_tensor(item).detach()
        target.copy_(tensor)
        planner.commit_tensor(item, target)


class SafePlanner(DefaultLoadPlanner):
    """Torch's planner, which never executes code of plain values."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)
        value.seek(0)
        super().load_bytes(read_item, value)


def read_tensors(reader: Reader, into: Mapping[str, Any], ranks: Ranks) -> None:
    """Load tensors into `into`, which may be a part of the checkpoint. Collective."""
    with warnings.catch_warnings():
        # Intended with one rank.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            load(
                dict(into),
                storage_reader=reader,
                planner=SafePlanner(),
                process_group=ranks.group,
                no_dist=ranks.group is None,
            )
        except CheckpointException as failed:  # no Exception; on all ranks, with the errors of each
            error, _ = next(iter(failed.failures.values()))
            known = isinstance(error, TrainfleetError | TornError)
            raise error if known else TornError(str(error)) from failed


def _saved(value: Any) -> bytes:
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


__all__ = [
    "FORMAT",
    "Reader",
    "SafePlanner",
    "Share",
    "StoreError",
    "TornError",
    "commit",
    "committed",
    "discard_unfinished",
    "remove",
    "write_share",
]
