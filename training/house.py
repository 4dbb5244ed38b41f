"""Where a run is at home: its readable side in a folder of this machine, its checkpoints there or below a URL.

Used by the step loop on every rank, and by launchers before it. With a URL the readable side (metrics.jsonl, run.json, ...) goes
along with each checkpoint and is fetched first on another machine. Easy to get wrong: whichever of the two sides is older
must give way, so run.json counts its uploads.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from training.recipe import Recipe
from training.runfolder import read_run
from training.stores import NotThereError, Patience, Store, is_remote, open_store

READABLE = ("run.json", "recipe.yaml", "metrics.jsonl", "report.html")
UPLOADS, HOME = "uploads", "home"


def patience(recipe: Recipe) -> Patience:
    """The recipe's patience with stores."""
    said = recipe.checkpoint.patience
    return Patience(said.attempts, said.first_wait, said.longest_wait, said.stall)


class House:
    """A run's two places; the same one for a run whose storage is a folder."""

    def __init__(self, recipe: Recipe, run_dir: Path, notify: Callable[[str, str], Any]) -> None:
        self.run_dir = run_dir
        self.url = recipe.home_url()
        self.store: Store | None = open_store(self.url, patience(recipe), notify) if is_remote(self.url) else None
        self.checkpoints = open_store(f"{self.url if self.store else run_dir}/checkpoints", patience(recipe), notify)

    def send(self) -> None:
        """Upload the readable side; nothing to do for a folder.

        Raises:
            StoreError: past all tries.
        """
        if self.store is None:
            return
        record = read_run(self.run_dir)
        record |= {UPLOADS: int(record.get(UPLOADS, 0)) + 1, HOME: self.url}
        write_whole(self.run_dir / "run.json", json.dumps(record, indent=1))
        for name in READABLE[1:]:
            with contextlib.suppress(FileNotFoundError):
                self.store.put(name, (self.run_dir / name).read_bytes())
        self.store.put("run.json", json.dumps(record, indent=1).encode())

    def fetch(self) -> bool:
        """Bring the readable side here where the store's is newer; returns whether it did.

        Raises:
            InputError: the folder belongs to another run's URL.
            StoreError: the store does not answer.
        """
        if self.store is None:
            return False
        here = read_run(self.run_dir)
        if here.get(HOME, self.url) != self.url:
            problem = Problem(str(self.run_dir), f"holds what {here[HOME]} left here", "use --run NAME, or move the folder away")
            raise InputError("this folder belongs to a run of another storage", [problem])
        try:
            there = json.loads(self.store.read("run.json"))
        except (NotThereError, ValueError):
            return False
        if int(there.get(UPLOADS, 0)) <= int(here.get(UPLOADS, 0)):
            return False
        for name in READABLE[1:]:
            with contextlib.suppress(NotThereError):
                self.store.fetch(name, self.run_dir / name)
        write_whole(self.run_dir / "run.json", json.dumps(there, indent=1))
        return True
