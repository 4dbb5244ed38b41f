"""Where raw files and blocks lie: a folder or an object store's URL, read through pyarrow's filesystems, and
a local cache.

Used by `sources`, `preparation` and `stream`. Easy to get wrong: an object store answers late or not at all
now and then, so reads
are tried again; and ranks of a machine share the cache, so a file appears in it whole or not at all.
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
from trainfleet.training.data.blocks import BlockEntry, TornBlockError
from trainfleet.training.stores import clouds, urls
from trainfleet.training.stores.error_messages import unsigned
from trainfleet.training.stores.retry import Patience

T = TypeVar("T")
TRIES = 5
FIRST_PAUSE_S = 0.5
_OF_ARROW = ("file", "s3", "gs", "gcs", "hdfs")
_WILD = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True)
class Found:
    """One file: its name relative to where it was looked for, its path in the filesystem, size and time."""

    name: str
    path: str
    size: int
    mtime_ns: int


def is_url(where: str) -> bool:
    return "://" in where and not where.startswith("file://")


def filesystem(where: str) -> tuple[Any, str]:
    """The pyarrow filesystem of a folder, file or URL, and the path in it; schemes that pyarrow lacks come
    from fsspec.

    A bucket is reached as that of checkpoints: by the same variables for endpoint, authority and account
    (`trainfleet.training.stores.clouds`).

    Raises:
        InputError: nothing here knows such URLs.
    """
    from pyarrow import fs

    if "://" not in where:
        return fs.LocalFileSystem(), str(Path(where).absolute())
    try:
        if urls.SCHEMES.get(where.partition("://")[0], "file") != "file" and "?" not in where:
            place = urls.parse(where, "data")
            return clouds.connect(place, Patience()).client, f"{place.bucket}/{place.path}".rstrip("/")
        if where.partition("://")[0] in _OF_ARROW:
            found, path = fs.FileSystem.from_uri(where)
            return found, path.rstrip("/")
        import fsspec

        spec, path = fsspec.core.url_to_fs(where)
        return fs.PyFileSystem(fs.FSSpecHandler(spec)), path.rstrip("/")
    except (ValueError, ImportError, OSError) as error:
        fix = "a folder, or a URL such as s3://bucket/folder, gs://... or abfs://..."
        raise InputError("cannot use the URL", [Problem(where, str(error).splitlines()[0], fix)]) from error


def patiently(action: Callable[[], T], where: str, pause: Callable[[float], Any] = time.sleep) -> T:
    """Do something that asks an object store, several times if need be.

    Raises:
        FileNotFoundError, PermissionError: at once; these do not go away.
        TrainfleetError: it failed each time.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return action()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:
            if not is_url(where):
                raise
            if "ACCESS_DENIED" in str(error) or "403" in str(
                error
            ):  # what pyarrow says instead of a PermissionError
                raise PermissionError(
                    13, f"access denied: {unsigned(str(error)).splitlines()[0]}", where
                ) from None
            if attempt == TRIES:
                raise TrainfleetError(
                    "an object store does not answer",
                    [Problem(where, f"failed {TRIES} times: {unsigned(str(error))}")],
                ) from None
            pause(FIRST_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
    raise AssertionError("unreachable")


def listing(where: str, glob: str) -> list[Found]:
    """Files below a folder whose relative name fits `glob`, or the one file that `where` is; sorted by name.

    Raises:
        InputError: there is nothing there, or it may not be read.
    """
    from pyarrow import fs

    system, path = filesystem(where)
    try:
        info = patiently(lambda: system.get_file_info(path), where)
        if info.type == fs.FileType.File:
            return [Found(info.base_name, path, info.size, info.mtime_ns or 0)]
        selector = fs.FileSelector(path, recursive=True, allow_not_found=True)
        found = patiently(lambda: system.get_file_info(selector), where)
    except OSError as error:
        raise InputError(
            "cannot read the data", [Problem(where, error.strerror or str(error), "check the rights")]
        ) from error
    fits = glob_pattern(glob).fullmatch
    skip = len(path.rstrip("/")) + 1
    files = [each for each in found if each.type == fs.FileType.File and fits(each.path[skip:])]
    if not files:
        what = (
            f"no file fits {glob}"
            if found or info.type == fs.FileType.Directory
            else "is no folder and no file"
        )
        raise InputError("there is no data", [Problem(where, what, "name a folder or a file that is there")])
    return sorted(
        (Found(each.path[skip:], each.path, each.size, each.mtime_ns or 0) for each in files),
        key=lambda each: each.name,
    )


def glob_pattern(glob: str) -> re.Pattern[str]:
    """`**/` is any folders or none, `*` and `?` stay within a name."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    return re.compile("".join(_WILD.get(part, re.escape(part)) for part in parts))


def sha256_of(stream: Any, chunk: int = 1 << 20) -> str:
    digest = hashlib.sha256()
    while piece := stream.read(chunk):
        digest.update(piece)
    return digest.hexdigest()


class BlockCache:
    """Blocks of object stores on this machine's disk, at most `limit` bytes: the least recently used go
    first.

    Shared by all processes of the machine. A block that is in use may be removed: who has it mapped keeps it.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def get(self, where: str, entry: BlockEntry) -> Path:
        """The local file of a block, fetched if it is not here.

        Raises:
            TornBlockError: what the store holds is not what the manifest says.
            TrainfleetError: the store does not answer, or the disk is full.
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
            fix = "make room, or set TRAINFLEET_CACHE to another folder"
            raise TrainfleetError(
                "cannot fetch a block", [Problem(f"{where}/{entry.name}", error.strerror or str(error), fix)]
            ) from error
        return path

    def _fetch(self, url: str, entry: BlockEntry, path: Path) -> None:
        system, remote = filesystem(url)

        def read() -> Any:
            with system.open_input_file(remote) as file:
                return file.read_buffer()

        payload = patiently(read, url)
        try:
            entry.check(payload, thorough=True)
        except TornBlockError:
            payload = patiently(read, url)  # a second time: it may have been torn on its way
            entry.check(payload, thorough=True)
        self._make_room(entry.bytes)
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".fetching-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(payload)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def _make_room(self, more: int) -> None:
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
