"""Tasks write the blocks to the store: the bytes that one machine writes, resumed after a kill, nothing on the
disk of the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from tests.training.data.test_preparation import add_bad_files, contents, prepared
from tests.training.data.transforms import Bytes, Measured
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.data import Integrity, in_store, partition, worker_pool
from trainfleet.training.data.upload import upload

PACKED: dict[str, Any] = {"transform": Bytes(), "pack": 8}
ROWS: dict[str, Any] = {"transform": Measured(), "rows_per_block": None}
SCATTERED: dict[str, Any] = {**ROWS, "scatter": 4}


def tasks_here(work: Any, items: Sequence[Any], local: bool) -> Iterator[tuple[int, Any]]:
    """Tasks as ray.data runs them, in another order, without Ray: work, item and result are pickled, and the
    first task runs twice.
    """
    packed = pickle.dumps(work)
    for number in [0, *reversed(range(len(items)))] if items else []:
        result = pickle.dumps(pickle.loads(packed)(pickle.loads(pickle.dumps(items[number]))))
        if number or len(items) == 1:
            yield number, pickle.loads(result)
    if len(items) > 1:
        yield 0, pickle.loads(result)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_by_ray", tasks_here)


def only(store: Path) -> Path:
    """The one prepared folder of a store."""
    (found,) = store.iterdir()
    return found


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("blocks", [1, 3, 1000])
@pytest.mark.parametrize(
    "more", [PACKED, ROWS, {**ROWS, "rows_per_block": 2}, SCATTERED, {**SCATTERED, "rows_per_block": 2}]
)
def test_any_number_of_tasks_writes_the_bytes_of_one_process(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], blocks: int
) -> None:
    monkeypatch.setattr(in_store, "RANGE", blocks)
    monkeypatch.setattr(partition, "GROUP_BYTES", 3000 * blocks)
    monkeypatch.setattr(sys.modules["trainfleet.training.data.prepare"], "BLOCK_BYTES", 2000)
    more = {**more, "extras": {"words.json": b"[1]"}}
    here = prepared(texts, tmp_path / "here", via="here", **more)
    seen: list[tuple[str, int, int]] = []
    there = prepared(
        texts,
        tmp_path / "there",
        via="ray",
        store=str(tmp_path / "store"),
        progress=lambda *each: seen.append(each),
        **more,
    )
    assert len(here.manifest.splits["train"]) > 2
    assert there.where == str(only(tmp_path / "store"))
    assert contents(Path(there.where)) == contents(Path(here.where))
    total = sum(len(each) for each in here.manifest.splits.values())
    assert seen[-1] == ("writing blocks", total, total)
    scattering = {"scattering"} if "scatter" in more else set()
    assert {stage for stage, *_ in seen} == {"reading", "writing blocks"} | scattering


@pytest.mark.usefixtures("tasks")
def test_an_object_store_holds_the_same_data_and_is_opened_by_the_next_start(
    texts: Path, tmp_path: Path
) -> None:
    here = prepared(texts, tmp_path / "here", via="here", **PACKED)
    first, second = (
        prepared(texts, tmp_path / name, via="ray", store="memory://in-store/text", **PACKED)
        for name in ("one", "two")
    )
    assert first.where == second.where
    assert first.manifest == here.manifest
    assert not fsspec.filesystem("memory").glob(f"{first.where}/.building*")
    assert upload(first, str(tmp_path / "sent")).manifest == here.manifest
    assert contents(tmp_path / "sent") == contents(Path(here.where))


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("more", [PACKED, SCATTERED])
def test_the_driver_holds_no_data_on_its_disk(texts: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    peaks = {}
    for name, via in (("one", "here"), ("tasks", "ray")):
        most = [0]

        def measured(*_: Any, folder: Path = tmp_path / name, most: list[int] = most) -> None:
            held = 0
            for path in folder.rglob("*"):
                with contextlib.suppress(FileNotFoundError):  # threads rename temporary files
                    held += path.stat().st_size if path.is_file() else 0
            most[0] = max(most[0], held)

        data = prepared(
            texts,
            tmp_path / name,
            via=via,
            store=f"memory://{tmp_path.name}-{name}",
            progress=measured,
            **more,
        )
        peaks[name] = most[0] / data.manifest.bytes()
    assert peaks["one"] > 1.5
    assert peaks["tasks"] == 0


@pytest.mark.usefixtures("tasks")
def test_the_tasks_write_to_the_target_of_the_command(texts: Path, tmp_path: Path) -> None:
    """`trainfleet data --to` offers its target; what is prepared next does not go there."""
    to = tmp_path / "sent"
    with in_store.writing_to(str(to)):
        sent = prepared(texts, tmp_path / "cache", via="ray", **SCATTERED)
        other = prepared(texts, tmp_path / "cache", via="ray", **PACKED)
    assert sent.where == str(to)
    assert Path(other.where).parent == tmp_path / "cache"
    assert [path for path in (tmp_path / "cache").rglob("*.arrow") if path.parts[-3] not in other.where] == []
    here = prepared(texts, tmp_path / "here", via="here", **SCATTERED)
    assert contents(to) == contents(Path(here.where))
    with in_store.writing_to(str(to)):
        assert prepared(texts, tmp_path / "cache", via="ray", **SCATTERED) == sent
    with (
        in_store.writing_to(str(to)),
        pytest.raises(InputError, match="the target holds other prepared data"),
    ):
        prepared(texts, tmp_path / "cache", via="ray", **ROWS)


@pytest.mark.usefixtures("tasks")
def test_another_preparation_of_the_same_target_finds_no_parts_of_a_killed_one(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    to = str(tmp_path / "sent")
    with monkeypatch.context() as patched:
        patched.setattr(in_store, "write_blocks", killed)
        with in_store.writing_to(to), pytest.raises(KeyboardInterrupt):
            prepared(texts, tmp_path / "cache", via="ray", **ROWS)
    assert not (tmp_path / "sent" / "manifest.json").exists()
    assert len(list((tmp_path / "sent").rglob("part-*.arrow"))) > 2
    with in_store.writing_to(to):
        found = prepared(texts, tmp_path / "cache", via="ray", **PACKED)
    assert found.manifest == prepared(texts, tmp_path / "here", via="here", **PACKED).manifest


@pytest.mark.usefixtures("tasks")
def test_bad_rows_are_named_and_leave_nothing_in_the_store(texts: Path, tmp_path: Path) -> None:
    expected = add_bad_files(texts)
    more = {"via": "ray", "store": str(tmp_path / "store")}
    with pytest.raises(InputError, match="4 of the data's files and rows cannot be used") as refused:
        prepared(texts, tmp_path / "cache", **more)
    assert {each.where: each.what for each in refused.value.problems if each.where} == expected
    assert contents(tmp_path / "store") == {}
    quarantine = Integrity("quarantine", 0.02)
    here = prepared(texts, tmp_path / "here", via="here", integrity=quarantine)
    there = prepared(texts, tmp_path / "cache", integrity=quarantine, **more)
    assert there.manifest == here.manifest


@pytest.mark.usefixtures("tasks")
def test_a_failed_task_leaves_no_manifest_and_the_next_start_writes_only_the_rest(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {**PACKED, "via": "ray", "store": str(tmp_path / "store")}
    monkeypatch.setattr(in_store, "RANGE", 3)
    sent: list[str] = []
    send = in_store.send

    def fails(content: Any, to: str) -> None:
        if to.endswith("train/00004.arrow"):
            raise TrainfleetError("the store is full")
        sent.append(to)
        send(content, to)

    with monkeypatch.context() as patched:
        patched.setattr(in_store, "send", fails)
        with pytest.raises(TrainfleetError, match="the store is full"):
            prepared(texts, tmp_path / "cache", **more)
    assert not (only(tmp_path / "store") / "manifest.json").exists()
    before, sent[:] = set(sent), []
    monkeypatch.setattr(in_store, "send", lambda content, to: (sent.append(to), send(content, to)))
    there = prepared(texts, tmp_path / "cache", **more)
    assert not any("/part-" in each for each in sent)
    assert len([each for each in before if "/train/" in each]) > 3
    assert {each for each in before & set(sent) if "/train/" in each} == {f"{there.where}/train/00003.arrow"}
    here = prepared(texts, tmp_path / "here", via="here", **PACKED)
    assert contents(Path(there.where)) == contents(Path(here.where))


@pytest.mark.usefixtures("tasks")
def test_a_machine_that_loses_the_parts_to_another_one_opens_its_data(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {**PACKED, "via": "ray", "store": str(tmp_path / "store")}
    write = in_store.write_blocks

    def late(*arguments: Any, **settings: Any) -> Any:
        monkeypatch.setattr(in_store, "write_blocks", write)
        prepared(texts, tmp_path / "other", **more)
        return write(*arguments, **settings)

    monkeypatch.setattr(in_store, "write_blocks", late)
    monkeypatch.setattr(in_store, "_noted", lambda *_: None)
    there = prepared(texts, tmp_path / "cache", **more)
    here = prepared(texts, tmp_path / "here", via="here", **PACKED)
    assert contents(Path(there.where)) == contents(Path(here.where))


DRIVER = """
import sys
from pathlib import Path
from tests.training.data.test_in_store import PACKED, SCATTERED, tasks_here
from tests.training.data.test_preparation import prepared
from trainfleet.training.data import worker_pool
worker_pool._by_ray = tasks_here
more = SCATTERED if sys.argv[4] == "scattered" else PACKED
prepared(Path(sys.argv[1]), Path(sys.argv[2]), via="ray", store=sys.argv[3], **more)
"""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("kind", "point"),
    [("packed", "in-preparation:4"), ("packed", "in-assembly:2"), ("scattered", "in-assembly:2")],
)
def test_a_killed_driver_resumes_on_another_machine(
    texts: Path, tmp_path: Path, kind: str, point: str
) -> None:
    def start(cache: str, fault: str = "") -> int:
        command = [sys.executable, "-c", DRIVER, str(texts), str(tmp_path / cache), str(tmp_path / "store")]
        command.append(kind)
        return subprocess.run(command, env={**os.environ, "TRAINFLEET_FAULT": fault}, check=False).returncode

    assert start("one", point) == -signal.SIGKILL
    there = only(tmp_path / "store")
    assert not (there / "manifest.json").exists()
    assert len(list(there.glob(".building-*/part-*.json"))) >= 4
    assert start("two") == 0
    more = SCATTERED if kind == "scattered" else PACKED
    here = prepared(texts, tmp_path / "here", via="here", **more)
    assert contents(there) == contents(Path(here.where))
    assert json.loads((there / "manifest.json").read_text())["digest"] == here.manifest.digest()


def test_ranges_read_only_the_parts_that_hold_their_samples() -> None:
    starts = np.array([0, 0, 40, 40, 100, 260], dtype=np.int64)
    plan = in_store.BlockPlan(4, {"train": 32}, {"train": starts})
    found = list(in_store._ranges(plan, "train", 0, 8))
    assert [(each.first, each.end, each.first_part, each.part_starts.tolist()) for each in found] == [
        (0, 8, 1, [0, 40, 40, 100, 260])
    ]
