"""A store: the few calls that checkpoints need, each tried again by one policy, each failure explained with
its URL.

Behind it stands a `Backend` per kind (a folder, or pyarrow's file systems), which knows nothing of retries.
Easy to get
wrong: a file is written by a function that can be called again, for a stream that broke off has to begin
anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.stores.error_messages import explain, unsigned
from trainfleet.training.stores.retry import Patience
from trainfleet.training.stores.urls import parse

Result = TypeVar("Result")
Notify = Callable[[str, str], Any]


class StoreError(TrainfleetError):
    """Raised when a store did not do what was asked, after all tries; its problem says where, what and what
    to do.
    """


class NotThereError(StoreError):
    """Raised when what should be read is not there."""


class ShortReadError(OSError):
    """Raised when a store sent fewer bytes than it has: worth another try."""


@dataclass(frozen=True)
class Written:
    """A file as it was handed to the store: what a manifest needs to find out later whether it is still that."""

    bytes: int
    sha256: str


class Output(Protocol):
    """A file being written: visible whole after `close`; after `abort` not at all, or empty (Azure)."""

    def write(self, data: Any) -> Any: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Backend(Protocol):
    """One try of each call; paths are relative, with slashes. A missing file is FileNotFoundError."""

    local: bool

    def create(self, path: str) -> Output: ...
    def read(self, path: str, offset: int, length: int | None) -> bytes: ...
    def chunks(self, path: str) -> Iterator[bytes]: ...
    def sizes(self, prefix: str) -> dict[str, int]: ...
    def remove(self, paths: Iterable[str]) -> None: ...
    def prune(self) -> None: ...


class Counted:
    """What a function writes a file to: counts, hashes, and says that something moved."""

    def __init__(self, output: Output, moved: Callable[[], None]) -> None:
        self._output, self._moved = output, moved
        self._digest = hashlib.sha256()
        self._count = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._output.write(view)
        self._count += len(view)
        self._moved()
        return len(view)

    def tell(self) -> int:
        return self._count

    def flush(self) -> None:
        """Nothing: a file reaches its store when it is closed."""

    def written(self) -> Written:
        return Written(self._count, self._digest.hexdigest())


class Store:
    """Files below one URL."""

    def __init__(self, url: str, backend: Backend, patience: Patience, notify: Notify) -> None:
        self.url, self.backend, self.patience, self.notify = url.rstrip("/"), backend, patience, notify

    @property
    def local(self) -> bool:
        """Whether this is a folder: `url` is its path then."""
        return self.backend.local

    def at(self, path: str) -> str:
        """The URL of a file or folder in it."""
        return f"{self.url}/{path}" if path else self.url

    def write(self, path: str, produce: Callable[[Counted], Any]) -> Written:
        """Write a file by `produce(output)`, which may be called several times; the file is there whole, or
        not at all.

        Raises:
            StoreError: all tries failed.
        """

        def attempt(moved: Callable[[], None]) -> Written:
            output = self.backend.create(path)
            counted = Counted(output, moved)
            try:
                produce(counted)
                output.close()
            except BaseException:
                output.abort()
                raise
            return counted.written()

        return self._try(attempt, "write", path)

    def put(self, path: str, data: bytes) -> Written:
        """Write a small file."""
        return self.write(path, lambda output: output.write(data))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file, or a part of it.

        Raises:
            NotThereError: there is none.
            StoreError: all tries failed.
        """

        def attempt(_: Callable[[], None]) -> bytes:
            data = self.backend.read(path, offset, length)
            if length is not None and len(data) != length:
                raise ShortReadError(f"{len(data)} bytes came instead of {length}")
            return data

        return self._try(attempt, "read", path)

    def hash(self, path: str) -> str:
        """SHA-256 of a file."""

        def attempt(moved: Callable[[], None]) -> str:
            digest = hashlib.sha256()
            for data in self.backend.chunks(path):
                digest.update(data)
                moved()
            return digest.hexdigest()

        return self._try(attempt, "read", path)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Bytes of every file below a folder of the store, by path; empty where there is no such folder."""
        return self._try(lambda _: self.backend.sizes(prefix), "list", prefix)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files; one that is gone already is as good as removed."""
        wanted = list(paths)
        if wanted:
            self._try(lambda _: self.backend.remove(wanted), "delete", wanted[0])

    def fetch(self, path: str, target: Path) -> None:
        """Copy a file into a folder of this machine, whole or not at all."""
        from trainfleet.files import write_whole

        write_whole(target, self.read(path))

    def probe(self) -> None:
        """Write, list, read and delete a small file: a missing right shows now and not after hours.

        Raises:
            StoreError: one of them is not possible.
        """
        name = ".probe"
        self.put(name, b"trainfleet")
        if name not in self.sizes() or self.read(name) != b"trainfleet":
            raise StoreError(
                "the storage does not give back what was written",
                [Problem(self.at(name), "was written and is not there")],
            )
        self.remove([name])

    def _try(self, call: Callable[[Callable[[], None]], Result], verb: str, path: str) -> Result:
        def again(error: BaseException) -> bool:
            return (
                not isinstance(error, FileNotFoundError | TrainfleetError)
                and explain(error, self.local).again
            )

        def tell(error: BaseException, pause: float, attempt: int) -> None:
            words = explain(error, self.local)
            self.notify(
                "store",
                f"cannot {verb} {self.at(path)}: {words.what}; try {attempt} of {self.patience.attempts} in {pause:.1f} s",
            )

        try:
            return self.patience.run(call, again, tell)
        except TrainfleetError:
            raise
        except Exception as error:
            if (
                not isinstance(error, OSError | RuntimeError | ValueError)
                and type(error).__module__ == "builtins"
            ):
                raise  # a bug of ours, not the store's
            words = explain(error, self.local)
            if isinstance(error, FileNotFoundError) and verb == "read":
                raise NotThereError(
                    "cannot read from the storage", [Problem(self.at(path), "is not there")]
                ) from error
            tried = f", {self.patience.attempts} times" if words.again and self.patience.attempts > 1 else ""
            raise StoreError(
                f"cannot {verb} in the storage{tried}", [Problem(self.at(path), words.what, words.fix)]
            ) from OSError(unsigned(str(error)))


def _silent(_what: str, _text: str) -> None:
    return None


def open_store(url: str, patience: Patience | None = None, notify: Notify = _silent) -> Store:
    """The store behind a URL or folder; nothing is asked of it yet. `notify("store", text)` hears of every
    try that failed.

    Raises:
        InputError: the URL means nothing, or the environment lacks the account that it needs.
    """
    place = parse(url)
    patience = patience or Patience()
    if place.kind == "file":
        from trainfleet.training.stores.folder import FolderBackend

        return Store(place.path, FolderBackend(Path(place.path)), patience, notify)
    from trainfleet.training.stores.clouds import connect

    return Store(url, connect(place, patience), patience, notify)
