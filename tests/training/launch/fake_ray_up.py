"""Replaces Ray's command line and the submitter of a run by `ray up`, in processes of their own.

fake_ray_up.py FOLDER ray|submit ARGUMENTS: writes what it is asked to FOLDER/calls. `up` waits for the file
FOLDER/head, the submitter for FOLDER/accept and then for FOLDER/end; if there is FOLDER/stopped, it has then printed
that the run was stopped. A submitter that finds FOLDER/dies removes it and ends before its run; one that finds
FOLDER/fails ends with its run, which has no result.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def main() -> None:
    folder, program, *arguments = Path(sys.argv[1]), *sys.argv[2:]
    with (folder / "calls").open("a") as calls:
        calls.write(f"{program} {arguments[0] if arguments else ''}\n")
    if program == "ray":
        if arguments[0] == "down":
            sys.stdout.write("Destroying cluster. Confirm [y/N]: y\n")
        if arguments[0] == "up":
            wait_for(folder / "head")
        if arguments[0] == "dashboard":
            wait_for(folder / "never")
        return
    wait_for(folder / "accept")
    sys.stdout.write(json.dumps({"kind": "attempt", "started": "1"}) + "\n")
    sys.stdout.flush()
    if (folder / "stopped").exists():
        sys.stdout.write(json.dumps({"kind": "result", "status": "stopped", "step": 20}) + "\n")
        sys.stdout.flush()
    if (folder / "fails").exists():
        return
    while not (folder / "end").exists():
        if (folder / "dies").exists():
            (folder / "dies").unlink()
            sys.exit(137)
        time.sleep(0.01)
    sys.stdout.write(json.dumps({"kind": "result", "status": "finished", "step": 40}) + "\n")


if __name__ == "__main__":
    main()
