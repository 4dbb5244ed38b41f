"""`trainfleet data`: its output, and blocks that are uploaded to an object store and read from there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest
from typer.testing import CliRunner

from tests.training.data.test_preparation import all_samples, contents, prepared
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training import workloads
from trainfleet.training.cli.data import data
from trainfleet.training.data import open_prepared
from trainfleet.training.data import upload as upload_module
from trainfleet.training.data.upload import upload
from trainfleet.training.runtime import ray_cluster


def test_uploaded_blocks_are_unchanged(texts: Path, tmp_path: Path) -> None:
    here = prepared(texts, tmp_path / "cache", extras={"words.json": b"[1]"})
    seen: list[int] = []
    there = upload(here, "memory://sent/texts", lambda what, done, total: seen.append(total - done))
    assert there.manifest.digest() == here.manifest.digest()
    assert there.extra("words.json") == b"[1]"
    blocks = there.blocks("train", cache=tmp_path / "fetched")
    assert blocks.rows(range(blocks.size))["name"] == all_samples(here, "train")["name"]
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0
    assert upload(here, "memory://sent/texts", lambda *_: seen.append(-1)).where == "memory://sent/texts"
    assert -1 not in seen  # the second upload sends nothing
    with pytest.raises(InputError, match="the target holds other prepared data"):
        upload(prepared(texts, tmp_path / "cache", rows_per_block=8), "memory://sent/texts")


def test_an_incomplete_upload_is_not_valid_data(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = prepared(texts, tmp_path / "cache")
    send, sent = upload_module.send, iter(range(3))

    def fails(content: bytes, to: str) -> None:
        if next(sent, None) is None:
            raise TrainfleetError("the store is full")
        send(content, to)

    with monkeypatch.context() as patched:
        patched.setattr(upload_module, "send", fails)
        with pytest.raises(TrainfleetError, match="the store is full"):
            upload(here, str(tmp_path / "sent"))
    assert len(list((tmp_path / "sent").rglob("*.arrow"))) == 3
    with pytest.raises(InputError, match=r"has no manifest\.json"):
        open_prepared(str(tmp_path / "sent"))
    upload(here, str(tmp_path / "sent"))
    assert contents(tmp_path / "sent") == contents(Path(here.where))


def test_the_command_lists_the_data_and_the_quarantined_files(
    tmp_path: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINFLEET_CACHE", str(tmp_path / "cache"))
    source = [
        f"workload.data.source={text_folder}",
        "workload.data.glob='**/*.txt'",
        "workload.data.validation_share=0.15",
        "workload.data.test_share=0.15",
    ]
    fsspec.filesystem("memory").pipe("/other/none", b"")
    sent = CliRunner().invoke(data, ["lm-tiny", *source, "--to", "memory://other/text"])
    assert sent.exit_code == 0, sent.output
    assert "40 source files" in sent.output
    assert "stored in memory://other/text" in sent.output
    again = CliRunner().invoke(data, ["lm-tiny", "workload.data.source=memory://other/text", "--json"])
    document = json.loads(again.stdout)
    assert document["where"] == "memory://other/text"
    assert document["left_out"] == {"count": 0, "named": []}
    assert sum(document["rows"].values()) > 1000


def test_the_command_prepares_on_the_cluster_of_ray_address(
    tmp_path: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    made = workloads.make_workload

    @contextlib.contextmanager
    def connect(_: Any, env: Mapping[str, str]) -> Iterator[None]:
        done.append(f"connected to {env['RAY_ADDRESS']}")
        yield
        done.append("left")

    def make_workload(*arguments: Any) -> Any:
        done.append("prepared")
        return made(*arguments)

    monkeypatch.setenv("TRAINFLEET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ray_cluster, "connect", connect)
    monkeypatch.setattr(workloads, "make_workload", make_workload)
    command = ["lm-tiny", f"workload.data.source={text_folder}", "workload.data.glob='**/*.txt'"]
    command += ["workload.data.validation_share=0.15", "workload.data.test_share=0.15"]
    assert CliRunner().invoke(data, command).exit_code == 0
    assert done == ["prepared"]
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert CliRunner().invoke(data, command).exit_code == 0
    assert done == ["prepared", "connected to head:6379", "prepared", "left"]
