"""A stored folder is whole or absent, whenever the process that writes it dies, and altered ones are found out."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from training.storage import MARKER, FolderStore, TornError


def put(store: FolderStore, name: str, text: str = "text") -> Path:
    folder = store.begin(name)
    (folder / "file").write_text(text)
    return store.commit(name, {"text": text})


def test_a_committed_folder_opens_and_tells_its_note(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    folder = put(store, "one")
    assert store.open("one") == folder
    assert (folder / "file").read_text() == "text"
    assert store.committed() == {"one": {"text": "text"}}


def test_a_folder_is_invisible_until_it_is_committed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    (store.begin("one") / "file").write_text("text")
    assert store.committed() == {}


DEATHS = {
    "while writing": ("pathlib.Path.rename", 0),
    "between folder and marker": ("os.replace", 0),
    "while syncing the folder": ("os.fsync", 1),
}


@pytest.mark.parametrize("moment", DEATHS)
def test_a_death_leaves_the_old_one_and_nothing_torn(tmp_path: Path, moment: str) -> None:
    store = FolderStore(tmp_path)
    put(store, "one", "old")
    assert dies_in(lambda: put(store, "two", "new"), *DEATHS[moment])
    assert list(store.committed()) == ["one"]
    assert (store.open("one") / "file").read_text() == "old"
    store.discard_unfinished()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]
    put(store, "two", "new")
    assert list(store.committed()) == ["one", "two"]


def cut_short(path: Path) -> None:
    path.write_text("te")


def flip_a_bit(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


DAMAGE: list[tuple[Callable[[Path], Any], str, str]] = [
    (cut_short, "file", "file has 2 bytes instead of 4"),
    (flip_a_bit, "file", "file is not what was written"),
    (Path.unlink, "file", "file is missing"),
    (cut_short, MARKER, f"{MARKER} cannot be read"),
]


@pytest.mark.parametrize(("damage", "name", "message"), DAMAGE)
def test_damage_is_found_out_and_named(tmp_path: Path, damage: Callable[[Path], Any], name: str, message: str) -> None:
    store = FolderStore(tmp_path)
    damage(put(store, "one") / name)
    with pytest.raises(TornError, match=message):
        store.open("one")


def dies_in(action: Callable[[], Any], function: str, calls: int) -> bool:
    """Run an action in a process that ends at once, without clean-up, in the call of `function` after `calls` of them."""

    def work() -> None:
        left = calls

        def die(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(9)
            left -= 1
            return real(*arguments, **named)

        module, _, name = function.rpartition(".")
        owner: Any = Path if module == "pathlib.Path" else os
        real = getattr(owner, name)
        setattr(owner, name, die)
        action()

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    return process.exitcode == 9
