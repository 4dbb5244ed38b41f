"""The benchmark of a checkpoint's files writes what it says, and leaves the module as it was."""

from __future__ import annotations

import pytest

from benchmarks import checkpoint_files
from trainfleet.training.checkpoint import files


def test_both_ways_write_the_same_files(monkeypatch: pytest.MonkeyPatch) -> None:
    before, calls = (files.WRITERS, files.FILE_BYTES), []
    write = files.write_share

    def recorded(*arguments: object) -> files.Share:
        share = write(*arguments)  # type: ignore[arg-type]
        calls.append((files.WRITERS, {name: digest.sha256 for name, digest in share.files.items()}))
        return share

    monkeypatch.setattr(files, "write_share", recorded)
    document = checkpoint_files.measure(1, 1)
    (one, alone), (several, together) = calls
    assert (one, several) == (1, files.WRITERS)
    assert alone == together
    assert len(alone) == checkpoint_files.FILES
    assert set(document["mib_per_second"]) == {"1", str(several)}
    assert before == (files.WRITERS, files.FILE_BYTES)
