"""What other machines need to reach the run's storage as this one does: its address and its CA, never a key.

Keys reach them by their cloud identity, by a Secret (`--from-secret`) or as a variable (`--secret`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from trainfleet.errors import InputError, Problem
from trainfleet.training.stores.urls import is_remote

SHARED_MOUNT = "/mnt/shared"
"""Where every launcher mounts the platform's shared filesystem."""
ENDPOINTS = (
    "TRAINFLEET_S3_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "STORAGE_EMULATOR_HOST",
    "TRAINFLEET_AZURE_ENDPOINT",
)
STORES = (*ENDPOINTS, "AZURE_STORAGE_ACCOUNT_NAME")
"""Variables that decide which store a URL means."""
FORWARDED = (
    *ENDPOINTS,
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "WANDB_MODE",
    "HF_HUB_OFFLINE",
)
"""Variables that say where stores are. None of them holds a key."""
CA_BUNDLE = "AWS_CA_BUNDLE"
"""Names the CA of a private store. A machine-wide bundle (SSL_CERT_FILE) is not sent to KubeRay or `ray up`.
"""
MAX_CONFIG_MAP_CA = 500_000
"""Bytes of certificates; a ConfigMap holds a megabyte."""
MAX_SCRIPT_CA = 60_000
"""Characters of certificates that the script of a SkyPilot task carries."""
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def forwarded(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of this machine that say where stores are."""
    return {name: env[name] for name in FORWARDED if env.get(name)}


def unreachable(storage: str, env: Mapping[str, str], machines: str = "pods") -> list[Problem]:
    """Why `machines` elsewhere could not read and write this storage."""
    if not is_remote(storage):
        what = f"`{storage}` is a folder of this machine, which {machines} do not have"
        return [Problem("storage", what, "--storage s3://BUCKET/runs (or gs://, az://)")]
    problems = []
    for name in ENDPOINTS:
        value = env.get(name)
        host = urlsplit(value if "//" in value else f"//{value}").hostname if value else None
        if host and _is_loopback(host):
            fix = f"an address that {machines} reach too, such as this machine's in their network"
            problems.append(Problem(name, f"{value} is this machine itself; elsewhere it is another", fix))
    return problems


def trust_variables(env: Mapping[str, str], file: str) -> dict[str, str]:
    """The variables that make a process trust the CA in `file`.

    The GCS and Azure clients read only SSL_CERT_FILE, which applies to every connection.
    """
    machine_wide = any(
        env.get(name, "").startswith("https://")
        for name in ("STORAGE_EMULATOR_HOST", "TRAINFLEET_AZURE_ENDPOINT")
    )
    return {CA_BUNDLE: file, **({"SSL_CERT_FILE": file} if machine_wide else {})}


def certificates(env: Mapping[str, str]) -> tuple[str, list[Problem]]:
    """The certificates (PEM) that this machine trusts for its stores, and nothing else of their file."""
    if not env.get(CA_BUNDLE):
        return "", []
    try:
        text = Path(env[CA_BUNDLE]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return "", [Problem(CA_BUNDLE, f"{env[CA_BUNDLE]} cannot be read: {error}")]
    blocks = CERTIFICATE.findall(text)
    if sum(map(len, blocks)) > MAX_CONFIG_MAP_CA:
        fix = "a file with only the CA that the store needs"
        what = f"{env[CA_BUNDLE]} is too large for a cluster's configuration"
        return "", [Problem(CA_BUNDLE, what, fix)]
    return "\n".join([*blocks, ""]) if blocks else "", []


def authority(env: Mapping[str, str]) -> str:
    """The certificates (PEM) for a SkyPilot task; empty where the cloud's own store is used.

    Raises:
        InputError: the file cannot be read, or is too large.
    """
    name = next((each for each in (CA_BUNDLE, "SSL_CERT_FILE") if env.get(each)), None)
    if name is None or not any(env.get(each) for each in ENDPOINTS):
        return ""
    try:
        text = Path(env[name]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem(name, f"{env[name]} cannot be read")
        raise InputError("the store's CA is missing", [problem]) from error
    found = "\n".join(CERTIFICATE.findall(text))
    if len(found) > MAX_SCRIPT_CA:
        what = f"{env[name]} has {len(found)} characters of certificates, too many for a task"
        problem = Problem(name, what, "a file with only the CA that the store needs")
        raise InputError("the store's CA is too large", [problem])
    return found


def require_reachable(storage: str, env: Mapping[str, str]) -> None:
    """Reject a storage that pods cannot write to.

    Raises:
        InputError: a folder of this machine, or a store that only this machine reaches.
    """
    if problems := unreachable(storage, env):
        raise InputError("the run would be lost with its pods", problems)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
