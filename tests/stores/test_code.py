"""Launched code in an object store: complete or absent, fetched through faults, stored once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.running import Running
from tests.training.user_code import clean_imports
from trainfleet.training.launch.code import changes, packed
from trainfleet.training.runtime import code_archive
from trainfleet.training.stores import open_store

__all__ = ["clean_imports"]
pytestmark = pytest.mark.usefixtures("clean_imports")
every = pytest.mark.parametrize("store_server", ["s3", "gs", "az"], indirect=True)


@every
def test_code_is_stored_by_its_digest_and_fetched_by_it(
    store_server: Running, prefix: str, tmp_path: Path
) -> None:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "stored_word.py").write_text("WORD = 'first'\n")
    home = store_server.url(f"{prefix}/run")
    first = packed(tmp_path / "exp", home)
    store, path = open_store(home), code_archive.archive_path(first.digest)
    store.put(path, b"")  # what an interrupted upload leaves on Azure
    first.upload()
    assert store.sizes() == {path: len(first.data)}
    store_server.proxy.fail("reset", times=2)
    unpacked = code_archive.use(first.url, str(tmp_path / "unpacked"))
    assert store_server.proxy.injected > 0
    assert unpacked is not None
    assert (unpacked / "stored_word.py").read_text() == "WORD = 'first'\n"
    (tmp_path / "exp" / "stored_word.py").write_text("WORD = 'second'\n")
    second = packed(tmp_path / "exp", home)
    second.upload()
    assert len(store.sizes()) == 2
    before = {"launches": [{"code": first.facts()}]}
    assert changes(before, second, "lm-tiny") == ["stored_word.py: changed"]
