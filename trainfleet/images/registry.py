"""A client of the registry API (https://distribution.github.io/distribution/spec/api) for what the tools do
differently: find the digest of a tag, and list the tags of a repository.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError

TIMEOUT_S = 60.0
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(
    rf"(?P<host>{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?)/(?P<path>{_NAME}(?:/{_NAME})*)"
)
"""As in https://github.com/distribution/reference."""
_PARALLEL = 8
DOCKER_HUB = "docker.io"
_API_HOSTS = {DOCKER_HUB: "registry-1.docker.io"}
"""Registries whose API has another host than the names of their images."""


@dataclass(frozen=True)
class Credentials:
    """A login of a registry."""

    user: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


@dataclass(frozen=True)
class TaggedImage:
    """A tag of a repository: its manifest's digest, the bytes of its layers as they are stored, and when the
    image was built (RFC 3339); empty if the image does not say.
    """

    tag: str
    digest: str
    size: int
    created: str


def split_repository(repository: str) -> tuple[str, str]:
    """The host, with its port, and the path of `HOST/PATH`.

    Raises:
        InputError: it is not written like this; tags and digests are not part of it.
    """
    found = _REPOSITORY.fullmatch(repository)
    if found is None:
        example = "such as registry.example/training, in lowercase, without https:// and without a tag"
        raise InputError("not a repository", [Problem(repository, "is not HOST/REPOSITORY", example)])
    return found["host"], found["path"]


class Repository:
    """One repository of a registry.

    Args:
        name: `HOST/PATH`.
        credentials: None = anonymous.
        ca: a file with the registry's CA certificate, in addition to those of the
            system's.
    """

    def __init__(self, name: str, credentials: Credentials | None, ca: Path | None = None) -> None:
        self.name = name
        self._host, self._path = split_repository(name)
        self._credentials = credentials
        self._authorization = ""
        context = ssl.create_default_context()
        if ca:
            context.load_verify_locations(ca)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    def digest(self, tag: str) -> str:
        """The digest of a tag's manifest; empty if there is no such tag.

        Raises:
            TrainfleetError: the registry does not answer, or refuses the login.
        """
        answer = self._request("HEAD", f"manifests/{tag}")
        return answer[0].get("Docker-Content-Digest", "") if answer else ""

    def images(self) -> list[TaggedImage]:
        """All tags, the newest first.

        Raises:
            TrainfleetError: the registry does not answer, or refuses the login.
        """
        with ThreadPoolExecutor(_PARALLEL) as pool:
            found = list(pool.map(self._image, self._tags()))
        return sorted(
            (each for each in found if each), key=lambda each: (each.created, each.tag), reverse=True
        )

    def _tags(self) -> list[str]:
        tags: list[str] = []
        path = "tags/list"
        while path and (answer := self._request("GET", path)):
            tags += self._document(answer[1]).get("tags") or []
            following = re.search(r'<[^>]*?(tags/list\?[^>]*)>;\s*rel="?next', answer[0].get("Link", ""))
            path = following[1] if following else ""
        return tags

    def _image(self, tag: str) -> TaggedImage | None:
        answer = self._request("GET", f"manifests/{tag}")
        if answer is None:
            return None
        digest, manifest = answer[0].get("Docker-Content-Digest", ""), self._document(answer[1])
        if rows := manifest.get("manifests"):  # an index: all its images are of one build
            inner = self._request("GET", f"manifests/{rows[0]['digest']}")
            manifest = self._document(inner[1]) if inner else {}
        size = sum(layer["size"] for layer in manifest.get("layers", ()))
        config: dict[str, Any] = {}
        if blob := manifest.get("config", {}).get("digest"):
            found = self._request("GET", f"blobs/{blob}")
            config = self._document(found[1]) if found else {}
        return TaggedImage(tag, digest, size, config.get("created") or "")

    def _request(self, method: str, path: str) -> tuple[Message, bytes] | None:
        """The headers and the body of an answer; None if there is no such thing."""
        url = f"https://{_API_HOSTS.get(self._host, self._host)}/v2/{self._path}/{path}"
        for attempt in range(2):
            request = urllib.request.Request(url, method=method, headers={"Accept": ", ".join(MANIFESTS)})
            if self._authorization:
                # NOTE: not sent to where the registry redirects, which would refuse or could steal it.
                request.add_unredirected_header("Authorization", self._authorization)
            try:
                with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                    return answer.headers, answer.read()
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 401 or attempt:
                    raise self._refused(error) from error
                self._authorization = self._authorize(error.headers.get("WWW-Authenticate", ""), error)
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from error
        return None

    def _authorize(self, challenge: str, refusal: urllib.error.HTTPError) -> str:
        """The header that answers a challenge (RFC 6750, and the registry's token authentication)."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic" and self._credentials:
            return self._credentials.basic
        values = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if scheme.lower() != "bearer" or not values.get("realm", "").startswith("https://"):
            raise self._refused(refusal) from refusal
        query = {key: values[key] for key in ("service", "scope") if key in values}
        request = urllib.request.Request(f"{values['realm']}?{urllib.parse.urlencode(query)}")
        if self._credentials:
            request.add_unredirected_header("Authorization", self._credentials.basic)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                document = self._document(answer.read())
        except urllib.error.HTTPError as error:
            raise self._refused(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        return f"Bearer {document.get('token') or document.get('access_token')}"

    def _document(self, text: bytes) -> dict[str, Any]:
        """The object of an answer in JSON."""
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            problem = Problem(self._host, "answers without a JSON object", "name the host of a registry")
            raise TrainfleetError("not the answer of a registry", [problem])
        return found

    def _refused(self, error: urllib.error.HTTPError) -> TrainfleetError:
        fix = ""
        if error.code in (401, 403):
            fix = "no right to this repository" if self._credentials else f"log in to {self._host} first"
        return TrainfleetError(
            "the registry refused a request", [Problem(self.name, f"{error.code} {error.reason}", fix)]
        )

    def _unreachable(self, error: Exception) -> TrainfleetError:
        reason = getattr(error, "reason", error)
        fix = "--ca FILE names its CA certificate" if isinstance(reason, ssl.SSLCertVerificationError) else ""
        what = getattr(reason, "verify_message", "") or str(reason) or type(reason).__name__
        return TrainfleetError("the registry does not answer", [Problem(self._host, what, fix)])
