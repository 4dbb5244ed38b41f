"""What GitLab's jobs call over HTTP: the STS of AWS, which checks a job's token, and GitLab's API of issues,
notes and merge requests."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.bootstrap.tokens import AUDIENCES, accepted
from tests.ci.clouds import Clouds
from tests.ci.loopback import listening
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.local_cluster.stores import servers

BOT = 4711
"""The user of the project access token that writes notes."""
ROLE = "arn:aws:iam::111122223333:role/ci-"


def token(claims: Mapping[str, str]) -> str:
    """A JSON Web Token whose signature nobody verifies."""
    return ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, claims, "signature")
    )


def read_token(text: str) -> dict[str, str]:
    """The claims of a token."""
    part = text.split(".")[1]
    found: dict[str, str] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


class Services:
    """Answers both. The roles trust what the bootstrap of this spec makes them trust."""

    def __init__(self, clouds: Clouds, spec: BootstrapSpec, data: Path, issues_token: str) -> None:
        self.clouds, self.spec, self.data, self.issues_token = clouds, spec, data, issues_token
        self.port = 0
        self.review_token, self.may_comment = "review-token", True
        """A project access token, and whether its role may write notes."""

    def assume(self, form: Mapping[str, str]) -> tuple[int, str]:
        """`AssumeRoleWithWebIdentity`."""
        claims = read_token(form["WebIdentityToken"])
        role = form["RoleArn"].removeprefix(ROLE)
        if claims["aud"] != AUDIENCES["aws"] or role not in accepted("aws", self.spec, claims):
            message = f"Not authorized to perform sts:AssumeRoleWithWebIdentity on {role} as {claims['sub']}"
            return 403, (
                "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code>"
                f"<Message>{message}</Message></Error></ErrorResponse>"
            )
        self.clouds.assumed.append((role, claims["sub"]))
        found = (  # the gateway has no sessions: an empty session token is not sent
            f"<AccessKeyId>{servers.KEY}</AccessKeyId><SecretAccessKey>{servers.SECRET}</SecretAccessKey>"
            "<SessionToken></SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>"
        )
        who = f"<Arn>{form['RoleArn']}/job</Arn><AssumedRoleId>AROA:job</AssumedRoleId>"
        return 200, (
            '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            f"<AssumeRoleWithWebIdentityResult><Credentials>{found}</Credentials>"
            f"<AssumedRoleUser>{who}</AssumedRoleUser></AssumeRoleWithWebIdentityResult>"
            "</AssumeRoleWithWebIdentityResponse>"
        )

    def issues(self, verb: str, path: str, form: Mapping[str, str], given: str) -> tuple[int, Any]:
        """List, create and change issues."""
        if given != self.issues_token:
            return 401, {"message": "401 Unauthorized"}
        document = json.loads(self.data.read_text())
        issues = document["issues"]
        number = path.rpartition("/issues")[2].lstrip("/")
        if verb == "GET":
            state = {"opened": "open"}[form["state"]]
            return 200, [
                {"iid": each["number"]}
                for each in issues
                if form["labels"] in each["labels"] and each["state"] == state
            ]
        if verb == "POST":
            assert not number
            made = {"number": len(issues) + 1, "title": form["title"], "labels": [form["labels"]]}
            issues.append({**made, "body": form["description"], "state": "open"})
        else:
            issue = issues[int(number) - 1]
            if "description" in form:
                issue["body"] = form["description"]
            if form.get("state_event") == "close":
                issue["state"] = "closed"
        self.data.write_text(json.dumps(document, indent=1))
        return 201 if verb == "POST" else 200, {}

    def notes(self, verb: str, path: str, form: Mapping[str, str], given: str) -> tuple[int, Any]:
        """List, create and change the notes of a merge request, and say who asks."""
        if given != self.review_token:
            return 401, {"message": "401 Unauthorized"}
        if path.endswith("/user"):
            return 200, {"id": BOT}
        number, _, note = path.partition("/merge_requests/")[2].partition("/notes")
        document = json.loads(self.data.read_text())
        found = document["pulls"][int(number) - 1].setdefault("notes", [])
        if verb == "GET":
            size, first = int(form["per_page"]), int(form["per_page"]) * (int(form["page"]) - 1)
            return 200, found[first : first + min(size, 100)]
        if not self.may_comment:
            return 403, {"message": "403 Forbidden"}
        if verb == "POST":
            found.append({"id": len(found) + 1, "author": {"id": BOT}, "body": form["body"]})
        else:
            changed = found[int(note.lstrip("/")) - 1]
            if changed["author"]["id"] != BOT:
                return 403, {"message": "403 Forbidden"}
            changed["body"] = form["body"]
        self.data.write_text(json.dumps(document, indent=1))
        return 201 if verb == "POST" else 200, {}

    def merge_requests(self, verb: str, path: str, _form: Mapping[str, str], given: str) -> tuple[int, Any]:
        """List the merge requests with a commit, or who approved one; an approval ends with the next push."""
        if given != self.review_token:
            return 401, {"message": "401 Unauthorized"}
        assert verb == "GET"
        pulls, name = json.loads(self.data.read_text())["pulls"], path.split("/")[-2]
        if path.endswith("/approvals"):
            pull = pulls[int(name) - 1]
            counting = [each for each in pull["reviews"] if each["commit"]["oid"] == pull["headRefOid"]]
            return 200, {"approved_by": [{"user": _user(each["author"])} for each in counting]}
        found = []
        for pull in pulls:
            merge_commit = (pull["mergeCommit"] or {}).get("oid")
            if name in (pull["headRefOid"], merge_commit, *pull.get("earlier_commits", ())):
                found.append(
                    {
                        "iid": pull["number"],
                        "state": {"open": "opened"}.get(pull["state"], pull["state"]),
                        "target_branch": "main",
                        "author": _user(pull["author"]),
                        "labels": [label["name"] for label in pull["labels"]],
                        "sha": pull["headRefOid"],
                        "merge_commit_sha": merge_commit,
                        "squash_commit_sha": None,
                    }
                )
        return 200, found


def _user(author: Mapping[str, str]) -> dict[str, Any]:
    return {"id": zlib.crc32(author["login"].encode()), "username": author["login"]}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # a client of Go loses an answer whose connection is closed at once
    wbufsize = -1

    def __init__(self, services: Services, *arguments: Any) -> None:
        self.services = services
        super().__init__(*arguments)

    def answer(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        form = {key: values[0] for key, values in parse_qs(f"{url.query}&{body}").items()}
        if url.path.startswith("/api/v4/"):
            token_ = self.headers.get("PRIVATE-TOKEN", "")
            answer = self.services.issues if "/issues" in url.path else self.services.notes
            if url.path.endswith(("/approvals", "/merge_requests")):
                answer = self.services.merge_requests
            code, found = answer(self.command, url.path, form, token_)
            text, kind = json.dumps(found), "application/json"
        elif form["Action"] == "AssumeRoleWithWebIdentity":
            (code, text), kind = self.services.assume(form), "text/xml"
        else:  # preflight reports it as not checked
            code, text, kind = 501, "<ErrorResponse/>", "text/xml"
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PUT = answer  # noqa: N815 - names of the base class

    def log_message(self, *_arguments: Any) -> None:
        """Write nothing."""


@contextlib.contextmanager
def serve(services: Services) -> Iterator[Services]:
    """Answer until the end of the block."""
    with listening(functools.partial(_Handler, services)) as services.port:
        yield services
