"""Writes the OIDC token of a GitHub job into a file, for clients that read one and do not request it.

Such a token is valid for minutes, and an apply may take hours: the file is written again until the job ends.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import urllib.parse
import urllib.request
from pathlib import Path

from trainfleet.console import err
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.files import write_whole

TIMEOUT_S = 30
RETRY_S = 5.0


def request_token(audience: str) -> str:
    """Request a token of this job.

    Raises:
        InputError: this is not a job of GitHub, or it may not request tokens.
        TrainfleetError: GitHub gives none.
    """
    url = os.environ.get("ACTIONS_ID_TOKEN_REQUEST_URL", "")
    bearer = os.environ.get("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "")
    if not (url and bearer):
        problem = Problem("ACTIONS_ID_TOKEN_REQUEST_URL", "is not set", "permissions: {id-token: write}")
        raise InputError("only a job of GitHub that may request tokens has one", [problem])
    query = urllib.parse.urlencode({"audience": audience})
    request = urllib.request.Request(f"{url}&{query}", headers={"Authorization": f"Bearer {bearer}"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return str(json.load(answer)["value"])
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        problem = Problem(urllib.parse.urlsplit(url).netloc, str(error) or type(error).__name__)
        raise TrainfleetError("GitHub gives the job no token", [problem]) from error


def write_token(file: Path, audience: str) -> None:
    """Request a token and write it, readable for this user alone."""
    write_whole(file, request_token(audience), mode=0o600)


def renew_token(file: Path, audience: str, every_s: float, end: threading.Event) -> None:
    """Write a new token every `every_s` seconds until the end; after a failure, it tries again soon."""
    wait = every_s
    while not end.wait(wait):
        try:
            write_token(file, audience)
            wait = every_s
        except TrainfleetError as error:
            err().print(str(error), markup=False, soft_wrap=True)
            wait = min(RETRY_S, every_s)
