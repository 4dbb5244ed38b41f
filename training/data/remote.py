"""Access to raw files and blocks in folders and object stores through pyarrow's filesystems, with a local
cache.

Reads from object stores are retried. The ranks of a machine share the cache; files appear in it atomically.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.data.blocks import BlockEntry, TornBlockError
from trainfleet.training.stores import clouds, urls
from trainfleet.training.stores.error_messages import redact_signature
from trainfleet.training.stores.retry import RetryPolicy
from trainfleet.training.stores.store import StoreUnavailableError

T = TypeVar("T")
MAX_ATTEMPTS = 5
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
_JITTER = random.Random()
"""Of waits. Not the process's generator, whose state is part of a checkpoint."""
STREAM_BUDGET_S = 600.0
"""How long a training waits for a block: with all of its machines, it has nothing else to do."""
_ARROW_SCHEMES = ("file", "s3", "gs", "gcs", "hdfs")
_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True)
class FileInfo:
    """One file: its name relative to the listed folder, path in the filesystem, size and
    modification time.
    """

    name: str
    path: str
    size: int
    mtime_ns: int


def is_url(where: str) -> bool:
    return "://" in where and not where.startswith("file://")


def filesystem(where: str) -> tuple[Any, str]:
    """The pyarrow filesystem of a folder, file or URL, and the path in it; fsspec serves other schemes.

    Buckets use the same environment variables for endpoint, authority and account as checkpoints
    (`trainfleet.training.stores.clouds`).

    Raises:
        InputError: the URL's scheme is not supported, or the URL is invalid.
    """
    from pyarrow import fs

    if "://" not in where:
        return fs.LocalFileSystem(), str(Path(where).absolute())
    try:
        if urls.SCHEMES.get(where.partition("://")[0], "file") != "file" and "?" not in where:
            place = urls.parse(where, "data")
            return clouds.connect(place, RetryPolicy()).client, f"{place.bucket}/{place.path}".rstrip("/")
        if where.partition("://")[0] in _ARROW_SCHEMES:
            found, path = fs.FileSystem.from_uri(where)
            return found, path.rstrip("/")
        import fsspec

        spec, path = fsspec.core.url_to_fs(where)
        return fs.PyFileSystem(fs.FSSpecHandler(spec)), path.rstrip("/")
    except (ValueError, ImportError, OSError) as error:
        fix = "use a folder, or a URL such as s3://bucket/folder, gs://... or abfs://..."
        raise InputError("cannot use the URL", [Problem(where, str(error).splitlines()[0], fix)]) from error


def with_retries(
    action: Callable[[], T],
    where: str,
    pause: Callable[[float], Any] = time.sleep,
    budget_s: float = 0.0,
) -> T:
    """Run an object store request, with retries for at least `budget_s` seconds of pauses.

    Raises:
        FileNotFoundError, PermissionError: at once, without a retry.
        StoreUnavailableError: all attempts failed.
    """
    attempt, paused = 0, 0.0
    while True:
        attempt += 1
        try:
            return action()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:
            if not is_url(where):
                raise
            text = redact_signature(str(error))
            if "ACCESS_DENIED" in text or "403" in text:  # pyarrow raises no PermissionError
                raise PermissionError(13, f"access denied: {text.splitlines()[0]}", where) from None
            if attempt >= MAX_ATTEMPTS and paused >= budget_s:
                raise StoreUnavailableError(
                    "the object store does not respond", [Problem(where, f"failed {attempt} times: {text}")]
                ) from None
            wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(attempt - 1, 64)) * _JITTER.uniform(0.5, 1.5)
            paused += wait
            pause(wait)


def listing(where: str, glob: str) -> list[FileInfo]:
    """Files below a folder whose relative name matches `glob`, or the single file `where`; sorted by name.

    Raises:
        InputError: no file matches, or reading is not permitted.
    """
    from pyarrow import fs

    system, path = filesystem(where)
    try:
        info = with_retries(lambda: system.get_file_info(path), where)
        if info.type == fs.FileType.File:
            return [FileInfo(info.base_name, path, info.size, info.mtime_ns or 0)]
        selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
        found = with_retries(lambda: system.get_file_info(selector), where)
    except OSError as error:
        raise InputError(
            "cannot read the data", [Problem(where, error.strerror or str(error), "check the permissions")]
        ) from error
    matches = glob_pattern(glob).fullmatch
    skip = len(path.rstrip("/")) + 1
    files = [each for each in found if each.type == fs.FileType.File and matches(each.path[skip:])]
    if not files:
        what = f"no file matches {glob}" if found or info.type == fs.FileType.Directory else "does not exist"
        raise InputError("there is no data", [Problem(where, what, "use an existing folder or file")])
    return sorted(
        (FileInfo(each.path[skip:], each.path, each.size, each.mtime_ns or 0) for each in files),
        key=lambda each: each.name,
    )


def send(content: Any, to: str) -> None:
    """Write a file of a folder or an object store as a whole.

    Raises:
        TrainfleetError: it cannot be written.
    """
    from pyarrow import fs

    system, path = filesystem(to)

    def write() -> None:
        if isinstance(system, fs.LocalFileSystem):
            write_whole(Path(path), content)
            return
        with system.open_output_stream(path) as stream:
            stream.write(content)

    try:
        with_retries(write, to)
    except OSError as error:
        raise TrainfleetError(
            "cannot write the prepared data",
            [Problem(to, error.strerror or str(error), "check the permissions and the free space")],
        ) from error


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A pattern in which `**/` matches any folders or none; `*` and `?` stay within a name."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    return re.compile("".join(_WILDCARDS.get(part, re.escape(part)) for part in parts))


def sha256_of(stream: Any, chunk: int = 1 << 20) -> str:
    digest = hashlib.sha256()
    while piece := stream.read(chunk):
        digest.update(piece)
    return digest.hexdigest()


class BlockCache:
    """Local LRU cache of object store blocks, at most `limit` bytes, shared by all processes of the machine.

    A block in use may be removed: a process that has it mapped keeps it.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def get(self, where: str, entry: BlockEntry) -> Path:
        """The local file of a block, fetched if missing.

        Raises:
            TornBlockError: the stored block does not match the manifest.
            StoreUnavailableError: the store does not respond.
            TrainfleetError: the disk is full.
        """
        path = self.folder / f"{entry.sha256}.arrow"
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)
            return path
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f".{entry.sha256[:8]}.lock"):
                if not path.exists():
                    self._fetch(f"{where}/{entry.name}", entry, path)
        except OSError as error:
            fix = "free disk space, or set TRAINFLEET_CACHE to another folder"
            raise TrainfleetError(
                "cannot fetch a block", [Problem(f"{where}/{entry.name}", error.strerror or str(error), fix)]
            ) from error
        return path

    def _fetch(self, url: str, entry: BlockEntry, path: Path) -> None:
        system, remote = filesystem(url)

        def read() -> Any:
            with system.open_input_file(remote) as file:
                return file.read_buffer()

        payload = with_retries(read, url, budget_s=STREAM_BUDGET_S)
        try:
            entry.check(payload, thorough=True)
        except TornBlockError:
            payload = with_retries(read, url, budget_s=STREAM_BUDGET_S)  # it may have been damaged in transit
            entry.check(payload, thorough=True)
        self._evict(entry.bytes)
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".fetching-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(payload)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def _evict(self, more: int) -> None:
        with FileLock(self.folder / ".room.lock"):
            files = sorted(self._files(), key=lambda each: each[0])
            total = sum(size for _, size, _ in files) + more
            for _, size, path in files:
                if total <= self.limit:
                    break
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                total -= size

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        for path in self.folder.glob("*.arrow"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                yield status.st_mtime, status.st_size, path
