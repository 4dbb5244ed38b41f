"""A restore from an object store: what is read, and what is not."""

from __future__ import annotations

import pytest
import torch

from tests.stores.running import Running
from trainfleet.training.checkpoint import CheckpointError, Checkpoints
from trainfleet.training.recipe.schema import CheckpointConfig
from trainfleet.training.stores import RetryPolicy, open_store

QUICK = RetryPolicy(attempts=4, first_s=0.05, longest_s=0.2, stall_s=20.0)
every = pytest.mark.parametrize("store_server", ["s3", "gs", "az"], indirect=True)


@every
def test_a_restore_reads_each_file_once(store_server: Running, prefix: str) -> None:
    def opened() -> Checkpoints:
        return Checkpoints(open_store(store_server.url(prefix), QUICK), CheckpointConfig(), lambda *_: None)

    saving, state = opened(), torch.randn(1 << 20)
    saving.save(1, {"model": {"value": state}}, {}, {}, {})
    assert saving.finish() is not None
    before = store_server.proxy.answered
    loading, value = opened(), torch.zeros(1 << 20)
    name = loading.choose()
    assert name is not None
    loading.read(name)
    loading.load(name, {"model": {"value": value}})
    assert torch.equal(value, state)
    read = store_server.proxy.answered - before
    assert state.nbytes < read < 1.2 * state.nbytes

    # A file that was altered, in the same length, is refused.
    path = f"{name}/__0_0.distcp"
    content = loading.store.read(path)
    loading.store.put(path, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="its checksum differs"):
        opened().choose()
