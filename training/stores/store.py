"""A store: the few operations that checkpoints need, each with retries and errors that name the URL.

A `Backend` per kind (a folder, or pyarrow's file systems) performs single attempts.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.stores.conditional import ConditionalFiles, ConflictError
from trainfleet.training.stores.entry import Entry
from trainfleet.training.stores.error_messages import explain, redact_signature
from trainfleet.training.stores.retry import RetryPolicy
from trainfleet.training.stores.urls import parse

Result = TypeVar("Result")
Notify = Callable[[str, str], Any]


class StoreError(TrainfleetError):
    """Raised when a store request failed after all attempts; its problem names the URL, the cause
    and a fix.
    """


class StoreUnavailableError(StoreError):
    """Raised when the last attempt failed too, for a cause that may pass, such as an overloaded store."""


class NotFoundError(StoreError):
    """Raised when the file to read does not exist."""


class ShortReadError(OSError):
    """Raised when a store sent fewer bytes than requested. Retryable."""


@dataclass(frozen=True)
class FileDigest:
    """Size and checksum of a written file, recorded in manifests to verify it later."""

    bytes: int
    sha256: str


class Output(Protocol):
    """A file being written: complete after `close`, absent or empty (Azure) after `abort`."""

    def write(self, data: Any) -> Any: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Backend(Protocol):
    """Single attempts. Paths are relative, with slashes. A missing file raises FileNotFoundError."""

    local: bool

    @property
    def conditional(self) -> ConditionalFiles: ...
    def create(self, path: str) -> Output: ...
    def read(self, path: str, offset: int, length: int | None) -> bytes: ...
    def chunks(self, path: str) -> Iterator[bytes]: ...
    def sizes(self, prefix: str) -> dict[str, int]: ...
    def entries(self, prefix: str) -> list[Entry]: ...
    def remove(self, paths: Iterable[str]) -> None: ...
    def remove_folder(self, prefix: str) -> None: ...
    def prune(self) -> None: ...


class HashingOutput:
    """A file-like output that counts and hashes bytes and reports progress."""

    def __init__(self, output: Output, on_progress: Callable[[], None]) -> None:
        self._output, self._on_progress = output, on_progress
        self._digest = hashlib.sha256()
        self._count = 0
        self.error: BaseException | None = None
        """What the output raised. A writer may hide it: torch.save raises another one from its archive."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._digest.update(view)
        try:
            self._output.write(view)
        except BaseException as error:
            self.error = error
            raise
        self._count += len(view)
        self._on_progress()
        return len(view)

    def tell(self) -> int:
        return self._count

    def flush(self) -> None:
        """No-op: a file reaches its store when it is closed."""

    def digest(self) -> FileDigest:
        return FileDigest(self._count, self._digest.hexdigest())


class Store:
    """Files below one URL."""

    def __init__(self, url: str, backend: Backend, retry: RetryPolicy, notify: Notify) -> None:
        self.url, self.backend, self.retry, self.notify = url.rstrip("/"), backend, retry, notify

    @property
    def local(self) -> bool:
        """Whether this is a folder; `url` is then its path."""
        return self.backend.local

    def at(self, path: str) -> str:
        """The URL of a file or folder in the store."""
        return f"{self.url}/{path}" if path else self.url

    def write(self, path: str, produce: Callable[[HashingOutput], Any]) -> FileDigest:
        """Write a file atomically by `produce(output)`, which is called again for each attempt.

        Raises:
            StoreError: all attempts failed.
        """

        def attempt(on_progress: Callable[[], None]) -> FileDigest:
            output = self.backend.create(path)
            hashing = HashingOutput(output, on_progress)
            try:
                produce(hashing)
                output.close()
            except BaseException:
                output.abort()
                if hashing.error is not None:
                    raise hashing.error  # noqa: B904 - the cause of what the writer raised
                raise
            return hashing.digest()

        return self._try(attempt, "write", path)

    def put(self, path: str, data: bytes) -> FileDigest:
        """Write a small file."""
        return self.write(path, lambda output: output.write(data))

    def read_versioned(self, path: str) -> tuple[bytes, str] | None:
        """The content of a small file and its version for `put_if`; None if it does not exist.

        Raises:
            UnsupportedConditionsError: this machine's client of the store has no conditional requests.
            StoreError: all attempts failed.
        """
        return self._try(lambda _: self.backend.conditional.get(path), "read", path)

    def put_if(self, path: str, data: bytes, version: str | None) -> str:
        """Write a small file that has this version, None if it must not exist; returns the new version.

        NOTE: after a lost answer the next attempt finds the version that the first one has written.

        Raises:
            ConflictError: the file has another version.
            UnsupportedConditionsError, StoreError: as above.
        """
        return self._try(lambda _: self.backend.conditional.put(path, data, version), "write", path)

    def remove_if(self, path: str, version: str) -> None:
        """Remove a file that has this version; a missing one is ignored.

        Raises:
            ConflictError, UnsupportedConditionsError, StoreError: as above.
        """
        self._try(lambda _: self.backend.conditional.delete(path, version), "delete", path)

    def honours_conditions(self, path: str) -> bool:
        """Whether the store rejects the creation of a file that exists. Creates `path`, and removes it.

        Raises:
            UnsupportedConditionsError, StoreError: as above.
        """
        if self._try(lambda _: self.backend.conditional.certain, "write", path):
            return True
        self.put(path, b"trainfleet")
        try:
            self.put_if(path, b"trainfleet", None)
        except ConflictError:
            return True
        finally:
            self.remove([path])
        return False

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file or a range of it.

        Raises:
            NotFoundError: the file does not exist.
            StoreError: all attempts failed.
        """

        def attempt(_: Callable[[], None]) -> bytes:
            data = self.backend.read(path, offset, length)
            if length is not None and len(data) != length:
                raise ShortReadError(f"received {len(data)} of {length} bytes")
            return data

        return self._try(attempt, "read", path)

    def hash(self, path: str, into: bytearray | None = None) -> str:
        """SHA-256 of a file, whose first bytes also fill `into`.

        Raises:
            StoreError: all attempts failed, for example because the file is shorter than `into`.
        """

        def attempt(on_progress: Callable[[], None]) -> str:
            digest, place = hashlib.sha256(), 0
            target = memoryview(bytearray() if into is None else into)
            for data in self.backend.chunks(path):
                digest.update(data)
                part = memoryview(data)[: len(target) - place]
                target[place : place + len(part)] = part
                place += len(part)
                on_progress()
            if place < len(target):
                raise ShortReadError(f"received {place} of {len(target)} bytes")
            return digest.hexdigest()

        return self._try(attempt, "read", path)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Bytes of every file below a folder of the store, by path; empty if the folder does not exist."""
        return self._try(lambda _: self.backend.sizes(prefix), "list", prefix)

    def entries(self, prefix: str = "") -> dict[str, Entry]:
        """What is directly in a folder of the store, by name; empty if the folder does not exist."""
        return {each.name: each for each in self._try(lambda _: self.backend.entries(prefix), "list", prefix)}

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files; missing ones are ignored."""
        names = list(paths)
        if names:
            self._try(lambda _: self.backend.remove(names), "delete", names[0])

    def remove_folder(self, prefix: str) -> None:
        """Remove everything below a folder of the store; a missing one is ignored.

        Object stores delete up to 1,000 files per request. The request stalls if there are no fewer files
        than before: a folder of thousands may take longer than that.
        """
        if not prefix.strip("/"):
            raise ValueError("the store itself is not removed")

        def attempt(on_progress: Callable[[], None]) -> None:
            removed = threading.Event()

            def watch() -> None:
                left: int | None = None
                while not removed.wait(self.retry.stall_s / 4):
                    with contextlib.suppress(Exception):  # the removal itself reports what fails
                        before, left = left, len(self.backend.sizes(prefix))
                        if before is not None and left < before:
                            on_progress()

            threading.Thread(target=watch, daemon=True, name="store-removal").start()
            try:
                self.backend.remove_folder(prefix)
            finally:
                removed.set()

        self._try(attempt, "delete", prefix)

    def fetch(self, path: str, target: Path) -> None:
        """Copy a file to a local path atomically."""
        from trainfleet.files import write_whole

        write_whole(target, self.read(path))

    def probe(self) -> None:
        """Write, list, read and delete a small file, to detect missing permissions before the run starts.

        Raises:
            StoreError: one of the requests failed.
        """
        name = f".probe-{secrets.token_hex(4)}"  # of this process alone: several may start at once
        self.put(name, b"trainfleet")
        if name not in self.sizes() or self.read(name) != b"trainfleet":
            raise StoreError(
                "the storage does not return what was written",
                [Problem(self.at(name), "was written and cannot be read back")],
            )
        self.remove([name])

    def _try(self, call: Callable[[Callable[[], None]], Result], verb: str, path: str) -> Result:
        def is_retryable(error: BaseException) -> bool:
            return (
                not isinstance(error, FileNotFoundError | TrainfleetError)
                and explain(error, self.local).retryable
            )

        def on_retry(error: BaseException, pause: float, attempt: int) -> None:
            what = f"cannot {verb} {self.at(path)}: {explain(error, self.local).what}"
            count = f" of {self.retry.attempts}" if attempt <= self.retry.attempts else ""
            self.notify("store", f"{what}; attempt {attempt}{count} in {pause:.1f} s")

        try:
            return self.retry.run(call, is_retryable, on_retry)
        except TrainfleetError:
            raise
        except Exception as error:
            if (
                not isinstance(error, OSError | RuntimeError | ValueError)
                and type(error).__module__ == "builtins"
            ):
                raise  # a bug in the caller, not a store error
            explained = explain(error, self.local)
            if isinstance(error, FileNotFoundError) and verb == "read":
                raise NotFoundError(
                    "cannot read from the storage", [Problem(self.at(path), "does not exist")]
                ) from error
            tried = ""
            if explained.retryable and self.retry.attempts > 1:
                minutes = f" and {self.retry.budget_s / 60:g} minutes" if self.retry.budget_s else ""
                tried = f" after {self.retry.attempts} attempts{minutes}"
            kind = StoreUnavailableError if explained.retryable else StoreError
            raise kind(
                f"cannot {verb} in the storage{tried}",
                [Problem(self.at(path), explained.what, explained.fix)],
            ) from OSError(redact_signature(str(error)))


def _silent(_what: str, _text: str) -> None:
    return None


def open_store(url: str, retry: RetryPolicy | None = None, notify: Notify = _silent) -> Store:
    """The store behind a URL or folder; sends no request yet. Calls `notify("store", text)` before each
    retry.

    Raises:
        InputError: the URL is not valid, or the environment lacks the account that it needs.
    """
    place = parse(url)
    retry = retry or RetryPolicy()
    if place.kind == "file":
        from trainfleet.training.stores.folder import FolderBackend

        return Store(place.path, FolderBackend(Path(place.path)), retry, notify)
    from trainfleet.training.stores.clouds import connect

    return Store(url, connect(place, retry), retry, notify)
