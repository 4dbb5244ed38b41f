"""What pods must be told to reach the run's storage as this machine does: its address and its authority, and
never a key.

Used by `trainfleet.training.launch.sky`. Keys come by the pods' identity, by a Secret of the namespace
(`--from-secret`) or as a secret of the task
(`--secret`). Easy to get wrong: an address that answers this machine need not answer a pod.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.kuberay.run_spec import ENDPOINTS, FORWARDED, unreachable

CA_FILES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE")
LARGEST = 60_000
"""Letters of certificates that a task's script takes along."""


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that say where stores are."""
    return {name: env[name] for name in FORWARDED if env.get(name)}


def authority(env: Mapping[str, str]) -> str:
    """The certificates (PEM) by which this machine trusts a store of its own; empty where the cloud's own
    store is used.

    Raises:
        InputError: the file that is named cannot be read, or is too large.
    """
    name = next((each for each in CA_FILES if env.get(each)), None)
    if name is None or not any(env.get(each) for each in ENDPOINTS):
        return ""
    try:
        text = Path(env[name]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "the store's authority is missing", [Problem(name, f"{env[name]} cannot be read")]
        ) from error
    found = "\n".join(re.findall(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", text, re.DOTALL))
    if len(found) > LARGEST:
        what = f"{env[name]} has {len(found)} letters of certificates, too many for a task"
        raise InputError(
            "the store's authority is too large",
            [Problem(name, what, "a file with the one that the store needs")],
        )
    return found


def refuse_unreachable(storage: str, env: Mapping[str, str]) -> None:
    """See that pods can write where the run is to be kept.

    Raises:
        InputError: a folder of this machine, or a store that only this machine reaches.
    """
    if problems := unreachable(storage, env):
        raise InputError("the run would be lost with its pods", problems)
