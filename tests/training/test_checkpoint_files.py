"""The files of one rank's share: several at a time, and none after a failure."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainfleet.training.checkpoint import files
from trainfleet.training.checkpoint.files import TornError, write_share
from trainfleet.training.checkpoint.verified import VerifiedFiles
from trainfleet.training.stores import RetryPolicy, StoreError, open_store
from trainfleet.training.stores.folder import FolderOutput

TENSORS = 6
WAIT_S = 30.0


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Items of a file each."""
    monkeypatch.setattr(files, "FILE_BYTES", 1)
    return [(SimpleNamespace(index=number), torch.full((8,), float(number))) for number in range(TENSORS)]


def test_files_are_written_several_at_a_time_and_have_their_own_items(
    tmp_path: Path, staged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2)  # the first two files are open at the same time, or neither is closed
    closed = FolderOutput.close
    entered = iter(range(TENSORS))

    def close(self: FolderOutput) -> None:
        if next(entered) < 2:
            together.wait(WAIT_S)
        closed(self)

    monkeypatch.setattr(FolderOutput, "close", close)
    share = write_share(open_store(str(tmp_path)), "step-1", 3, staged)
    assert list(share.files) == [f"__3_{number}.distcp" for number in range(TENSORS)]
    for number in range(TENSORS):
        place = share.places[number]
        content = (tmp_path / "step-1" / place.relative_path).read_bytes()
        assert place.relative_path == f"__3_{number}.distcp"
        assert hashlib.sha256(content).hexdigest() == share.files[place.relative_path].sha256
        part = tmp_path / "part.pt"
        part.write_bytes(content[place.offset : place.offset + place.length])
        assert torch.equal(torch.load(part), staged[number][1])


def test_no_file_is_begun_after_one_that_could_not_be_written(
    tmp_path: Path, staged: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def close(self: FolderOutput) -> None:
        tried.append(self)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FolderOutput, "close", close)
    monkeypatch.setattr(files, "WRITERS", 1)
    with pytest.raises(StoreError, match="No space left"):
        write_share(open_store(str(tmp_path), RetryPolicy(attempts=1)), "step-1", 0, staged)
    assert len(tried) == 1


@pytest.mark.parametrize("altered", [0, TENSORS - 1])
def test_every_file_is_compared_with_its_checksum(tmp_path: Path, staged: Any, altered: int) -> None:
    store = open_store(str(tmp_path))
    share = write_share(store, "step-1", 0, staged)
    manifest = {
        file: {"sha256": digest.sha256, "bytes": digest.bytes} for file, digest in share.files.items()
    }
    VerifiedFiles().verify(store, "step-1", manifest)
    path = tmp_path / "step-1" / f"__0_{altered}.distcp"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(TornError, match=f"__0_{altered}.distcp was altered"):
        VerifiedFiles().verify(store, "step-1", manifest)
