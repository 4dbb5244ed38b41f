"""A filesystem for Ray Train that stores nothing, because the step loop writes the checkpoints itself.

Ray Train writes a marker to its storage and refuses to train if a worker on another machine does not see it.
NOTE: the marker must appear to exist and everything else must not, or Ray restores what was never written.
"""

from __future__ import annotations

from typing import Any

import pyarrow
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, PyFileSystem

MARKER = ".validate_storage_marker"


class _Nothing(FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Takes all that is written and has nothing to read."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Nothing)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_Nothing)

    def get_type_name(self) -> str:
        return "nothing"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [
            FileInfo(path, FileType.File if path.endswith(MARKER) else FileType.NotFound, size=0)
            for path in paths
        ]

    def get_file_info_selector(self, selector: FileSelector) -> list[Any]:  # noqa: ARG002
        return []

    def create_dir(self, path: str, recursive: bool) -> None: ...

    def delete_dir(self, path: str) -> None: ...

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None: ...

    def delete_root_dir_contents(self) -> None: ...

    def delete_file(self, path: str) -> None: ...

    def move(self, source: str, destination: str) -> None: ...

    def copy_file(self, source: str, destination: str) -> None: ...

    def open_input_stream(self, path: str) -> Any:
        raise FileNotFoundError(path)

    def open_input_file(self, path: str) -> Any:
        raise FileNotFoundError(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:  # noqa: ARG002
        return pyarrow.BufferOutputStream()

    def open_append_stream(self, path: str, metadata: Any) -> Any:  # noqa: ARG002
        return pyarrow.BufferOutputStream()


def nothing() -> Any:
    """The file system, as Ray Train takes it."""
    return PyFileSystem(_Nothing())
