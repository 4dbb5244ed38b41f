"""Batch inference by the ranks of a process group: of `predict --on`, and of `--shard`.

Each rank makes every Nth block, or of a model in shards all ranks make each block together. The output is a
folder, which appears when it is complete, or a URL. An object store cannot rename, so there the manifest is
written last: an output without it is not complete.

NOTE: ranks with shards compute the same rows from the same bits, so that they agree when a text has ended.
They need devices of one kind.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.data.sources import find_source
from trainfleet.training.inference import prediction_files as files
from trainfleet.training.inference.predict import Request, bad_rows_error, make_block, plan_of
from trainfleet.training.inference.prediction_files import BLOCKS, MANIFEST, PLAN, Block
from trainfleet.training.inference.predictor import open_predictor
from trainfleet.training.stores import NotFoundError, is_remote, open_store

if TYPE_CHECKING:
    from trainfleet.training.runtime.process_group import World

Send = Callable[..., Any]


def work(job: Mapping[str, Any], send: Send) -> dict[str, Any]:
    """Run one rank of this machine; returns the manifest."""
    import torch

    from trainfleet.training.runtime.process_group import init_from_env, shutdown

    world = init_from_env(use_gpu=torch.cuda.is_available())
    try:
        return on_ranks(job, world, send)
    finally:
        shutdown()


def on_ranks(job: Mapping[str, Any], world: World, send: Send) -> dict[str, Any]:
    """Predict on the ranks of an existing process group; returns the manifest on each. Collective.

    Args:
        job: the fields of `predict.Request`. `workers` is that of the group.
        world: this rank's place.
        send: receives the progress of this rank.

    Raises:
        InputError: as `predict.predict`.
    """
    from trainfleet.training.runtime.collectives import PREPARATION, Ranks
    from trainfleet.training.runtime.process_group import on_first

    request = Request(**job)
    sharded = request.shard and world.world_size > 1
    source = find_source(request.input, request.glob, unit_bytes=request.block_kib << 10)
    predictor = open_predictor(
        request.source, request.which, world.device, precision=request.precision, sharded=sharded
    )
    predictor.check(request.settings)
    plan = plan_of(request, source, predictor)
    output = Output(request.output, request.form)
    with contextlib.ExitStack() as held:
        begun = on_first(lambda: output.begin(plan, held), world.rank)
        if "manifest" in begun:
            return dict(begun["manifest"]) | {"already": True}
        done = set(begun["done"])
        todo = [(number, unit) for number, unit in enumerate(source.units) if number not in done]
        mine = todo if sharded else todo[world.rank :: world.world_size]
        # Not the default group, whose time-out is shorter than some blocks.
        ranks = Ranks(PREPARATION)
        for count, (number, unit) in enumerate(mine, 1):
            block = make_block(predictor, number, unit, request)
            if block.bad and request.on_bad == "refuse":
                raise bad_rows_error(block.bad)
            if world.rank == 0 or not sharded:
                output.add(block)
            send("progress", done=count, total=len(mine))
        ranks.any(False)  # every block is written
        manifest = ranks.on_first(lambda: output.complete(plan))
        ranks.close()
        return dict(manifest)


class Output:
    """A folder or URL that several ranks write blocks to."""

    def __init__(self, output: str, form: str) -> None:
        self._folder = None if is_remote(output) else Path(output).absolute()
        self._name, self._form = output.rstrip("/"), form
        self._partial = (
            None if self._folder is None else self._folder.with_name(f"{self._folder.name}.partial")
        )
        self._store = open_store(self._name if self._partial is None else str(self._partial))

    def begin(self, plan: Mapping[str, Any], held: contextlib.ExitStack) -> dict[str, Any]:
        """Prepare the output, on one rank.

        Returns:
            `done`, the numbers of the finished blocks; or `manifest` of the same, complete predictions.

        Raises:
            InputError: it holds other predictions, or something else.
        """
        if self._folder is not None and self._partial is not None:
            manifest = files.existing_output(self._folder, plan)
            if manifest is not None:
                return {"manifest": manifest}
            return {"done": list(held.enter_context(files.locked_output(self._partial, plan)))}
        found = self._stored(MANIFEST)
        if found is not None:
            files.check_same_plan(found.get("plan", {}), plan, self._name)
            return {"manifest": found}
        before = self._stored(PLAN)
        if before is None:
            if self._store.sizes():
                problem = Problem(self._name, "exists and holds no predictions", "--output another folder")
                raise InputError("the output folder already exists", [problem])
            self._store.put(PLAN, json.dumps(plan, indent=1).encode())
        else:
            files.check_same_plan(before, plan, self._name)
        return {"done": self._numbers()}

    def add(self, block: Block) -> None:
        """Write a block, then its note, which marks it as finished."""
        note = files.note_of(block, self._form)
        self._store.put(note["file"], block.payload)
        self._store.put(f"{BLOCKS}/{block.number}.json", json.dumps(note).encode())

    def complete(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Write the manifest of the blocks of all ranks, on one rank; returns it."""
        done = {number: self._stored(f"{BLOCKS}/{number}.json") or {} for number in self._numbers()}
        if self._folder is not None and self._partial is not None:
            return files.complete(self._partial, self._folder, plan, done)
        manifest = files.manifest_of(self._name, plan, done)
        self._store.put(MANIFEST, json.dumps(manifest, indent=1).encode())
        self._store.remove([PLAN, *(f"{BLOCKS}/{number}.json" for number in done)])
        return manifest

    def _numbers(self) -> list[int]:
        return sorted(int(Path(name).stem) for name in self._store.sizes(f"{BLOCKS}/"))

    def _stored(self, name: str) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self._store.read(name)))
        except NotFoundError:
            return None
