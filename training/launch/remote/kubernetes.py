"""The part of the Kubernetes API that a run needs. Objects are plain documents.

The package `kubernetes` takes a second to import, so it is imported on first use.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from trainfleet.console import install_hint
from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError
from trainfleet.kubernetes_login import LOG_IN_AGAIN, client_settings, login_errors, renewal
from trainfleet.workspace import key_files

Document = dict[str, Any]
Result = TypeVar("Result")

MANAGER = "trainfleet"
TIMEOUT_S = 20.0
RETRY_FOR_S = 300.0
RETRIED = (0, 401, 429)
"""Statuses that pass, besides those of a failing server."""
PLURALS = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Job": ("/apis/batch/v1", "jobs"),
    "Event": ("/api/v1", "events"),
    "Pod": ("/api/v1", "pods"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "ResourceQuota": ("/api/v1", "resourcequotas"),
    "RayCluster": ("/apis/ray.io/v1", "rayclusters"),
    "RayJob": ("/apis/ray.io/v1", "rayjobs"),
    "RayService": ("/apis/ray.io/v1", "rayservices"),
}


class ApiError(TrainfleetError):
    """Raised when the API server rejects a call: status (0: it was not reached), reason and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message
        what = "rejected the call" if status else "cannot be reached"
        super().__init__(f"the cluster {what}: {message}")

    @property
    def passes(self) -> bool:
        """Whether the same call may succeed later: the API server is away, or the user logs in again."""
        return self.status in RETRIED or self.status >= 500


class Cluster:
    """A cluster, and the namespace in it that a run uses."""

    def __init__(
        self,
        api: Any,
        namespace: str,
        name: str,
        renew: str = LOG_IN_AGAIN,
        log_in: Callable[[], Any] | None = None,
    ) -> None:
        self._api, self.namespace, self.name = api, namespace, name
        self.renew = renew
        """How the user gets a new login."""
        self._log_in = log_in

    def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
    ) -> Document:
        """One call; the document of its response.

        Raises:
            ApiError: it was rejected, or not answered.
        """
        response = self._call(method, path, query or {}, body, content, TIMEOUT_S)
        try:
            return dict(json.loads(response.data)) if response.data else {}
        except ValueError as error:
            text = f"the response of {self.name} is not from Kubernetes: {response.data[:80]!r}"
            raise ApiError(0, "", text) from error

    def get(self, kind: str, name: str) -> Document | None:
        """An object; None if it does not exist."""
        try:
            return self.request("GET", f"{self._path(kind)}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, kind: str, selector: str = "", fields: str = "") -> list[Document]:
        """The namespace's objects of a kind; none where the cluster does not have the kind."""
        query = {
            key: value for key, value in (("labelSelector", selector), ("fieldSelector", fields)) if value
        }
        try:
            return list(self.request("GET", self._path(kind), query=query).get("items", []))
        except ApiError as error:
            if error.status == 404:
                return []
            raise

    def create(self, document: Document, *, dry_run: bool = False) -> Document:
        """Create an object; none of its name may exist."""
        query = {
            "fieldManager": MANAGER,
            "fieldValidation": "Strict",
            **({"dryRun": "All"} if dry_run else {}),
        }
        return self.request("POST", self._path(document["kind"]), query=query, body=document)

    def apply(self, document: Document) -> Document:
        """Create or update an object by server-side apply."""
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict", "force": "true"}
        path = f"{self._path(document['kind'])}/{document['metadata']['name']}"
        return self.request("PATCH", path, query=query, body=document, content="application/apply-patch+yaml")

    def delete(self, kind: str, name: str, options: Document | None = None) -> bool:
        """Delete an object and what it owns; whether it existed. `options` is a DeleteOptions."""
        query = {} if options else {"propagationPolicy": "Background"}
        try:
            self.request("DELETE", f"{self._path(kind)}/{name}", query=query, body=options)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def log(
        self, pod: str, container: str, *, follow: bool, since: str | None = None, tail: int | None = None
    ) -> Iterator[tuple[str, str]]:
        """A container's log lines with their times, from `since` on.

        Raises:
            ApiError: there is no such log, or the connection was lost.
        """
        query = {"container": container, "timestamps": "true", "follow": "true" if follow else "false"}
        query |= {"sinceTime": since} if since else {}
        query |= {"tailLines": str(tail)} if tail is not None else {}
        response = self._call(
            "GET",
            f"{self._path('Pod')}/{pod}/log",
            query,
            None,
            "application/json",
            None if follow else TIMEOUT_S,
        )
        try:
            for line in _lines(response):
                when, _, text = line.partition(" ")
                yield when, text
        except Exception as error:  # one of many of urllib3's
            raise ApiError(0, "", f"the log of {pod} was cut off ({type(error).__name__})") from error
        finally:
            response.release_conn()

    def execute(self, pod: str, container: str, command: list[str]) -> str:
        """Run a command in a container and return what it printed."""
        from kubernetes import client
        from kubernetes.stream import stream

        call = client.CoreV1Api(self._client()).connect_get_namespaced_pod_exec
        try:
            return str(
                stream(
                    call,
                    pod,
                    self.namespace,
                    container=container,
                    command=command,
                    stderr=True,
                    stdout=True,
                    stdin=False,
                    tty=False,
                    _request_timeout=TIMEOUT_S,
                )
            )
        except Exception as error:  # websocket's own, and ApiException
            reason = str(error).strip().splitlines()[0][:160] if str(error) else repr(error)
            raise ApiError(0, "", f"cannot run a command in {pod} ({reason})") from error

    def forward(self, pod: str, port: int) -> Any:
        """A socket to a port of a pod, through the API server."""
        from kubernetes import client
        from kubernetes.stream import portforward

        connect = client.CoreV1Api(self._client()).connect_get_namespaced_pod_portforward
        try:
            return portforward(connect, pod, self.namespace, ports=str(port)).socket(port)
        except Exception as error:
            raise ApiError(0, "", f"no connection to {pod}:{port} ({str(error).strip()[:160]})") from error

    def _client(self) -> Any:
        """A client for one stream. `stream` replaces the client's `request` for its duration
        (kubernetes-client/python#1750), and other threads are using the shared one.
        """
        return type(self._api)(self._api.configuration)

    def _path(self, kind: str) -> str:
        group, plural = PLURALS[kind]
        return f"{group}/namespaces/{self.namespace}/{plural}"

    def _call(  # noqa: PLR0917
        self, method: str, path: str, query: dict[str, str], body: Any, content: str, timeout: float | None
    ) -> Any:
        """One call; with a new login if that of this client has ended."""
        try:
            return self._call_once(method, path, query, body, content, timeout)
        except ApiError as error:
            if error.status != 401 or self._log_in is None:
                raise
            # The login command is asked, and the kubeconfig is read, again: somebody may have renewed it.
            try:
                self._api = self._log_in()
            except InputError as failed:
                why = "; ".join(each.what for each in failed.problems)
                raise ApiError(401, error.reason, f"{error.message} ({why})") from error
            return self._call_once(method, path, query, body, content, timeout)

    def _call_once(  # noqa: PLR0917
        self, method: str, path: str, query: dict[str, str], body: Any, content: str, timeout: float | None
    ) -> Any:
        from kubernetes.client.exceptions import ApiException

        try:
            response = self._api.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={
                    "Content-Type": content,
                    "Accept": "*/*" if path.endswith("/log") else "application/json",
                },
                body=body,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=(TIMEOUT_S, timeout),
            )
        except ApiException as error:
            raise self._rejection(error.status or 0, error.reason, error.body) from error
        except Exception as error:
            raise ApiError(0, "", f"{self.name}: {_short(error)}") from error
        if response.status >= 400:
            raise self._rejection(response.status, response.reason, response.data)
        return response

    def _rejection(self, status: int, reason: str | None, body: Any) -> ApiError:
        if status == 401:
            message = f"the login of {self.name} has ended or is not valid: {self.renew}"
            return ApiError(status, reason or "", message)
        return rejection(status, reason or "", body)


def _lines(response: Any) -> Iterator[str]:
    rest = b""
    for chunk in response.stream(1 << 16, decode_content=False):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", errors="replace")
    if rest:
        yield rest.decode("utf-8", errors="replace")


def rejection(status: int, reason: str, body: Any) -> ApiError:
    """The error for a response of the API server, whose body holds the reason."""
    try:
        document = json.loads(body)
        return ApiError(status, str(document.get("reason") or reason), str(document.get("message") or reason))
    except (ValueError, TypeError, AttributeError):
        text = body.decode("utf-8", errors="replace") if isinstance(body, bytes) else str(body or "")
        return ApiError(status, reason, text.strip()[:200] or reason or f"status {status}")


_CONNECTION = re.compile(r"^(<.*?>|HTTPS?Connection\(.*?\)): ")
"""How urllib3 begins a message: the host is named anyway."""


def _short(error: BaseException) -> str:
    cause = getattr(error, "reason", None) or error
    text = str(cause).strip().splitlines()
    return _CONNECTION.sub("", text[0] if text else type(cause).__name__)[:200]


def connect(context: str | None, kubeconfig: str, kube_context: str, namespace: str) -> Cluster:
    """Connect by the user's context, else by the platform's.

    An entry of the platform's name in the user's kubeconfig comes first, because it has the user's login.

    Raises:
        InputError: no such context, or a kubeconfig that cannot be read.
        MissingToolError: the package `kubernetes` or a login program is missing.
    """
    try:
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException
    except ModuleNotFoundError as error:
        problem = Problem("kubernetes", "is not installed", install_hint("kuberay"))
        raise MissingToolError("a package for Kubernetes is missing", [problem]) from error

    known, current = contexts()
    name = context or kube_context or current
    own = name in known

    def log_in() -> Any:
        settings = client_settings()
        options = {"client_configuration": settings, "temp_file_path": str(key_files())}
        try:
            with login_errors(name):
                if own:
                    config.load_kube_config(_kubeconfig(), context=name, **options)
                else:
                    config.load_kube_config_from_dict(json.loads(kubeconfig), **options)
        except ConfigException as error:
            problem = Problem(name, str(error).strip(), "log in to the cluster again")
            raise InputError("cannot use the kubeconfig", [problem]) from error
        except ValueError as error:
            problem = Problem(name, f"is not JSON: {error}")
            raise InputError("cannot use the kubeconfig", [problem]) from error
        settings.retries = False
        if not settings.verify_ssl:
            # The user's own setting for this cluster: no warning on every call.
            import urllib3

            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        return client.ApiClient(settings)

    if not own and (context is not None or kubeconfig.strip() in ("", "{}")):
        from trainfleet.suggestions import did_you_mean

        fix = did_you_mean(name, known) if known else "there is no kubeconfig; set KUBECONFIG"
        what = f"context `{name}`" if name else "current context"
        problem = Problem("--context", f"your kubeconfig has no {what}", fix)
        raise InputError("unknown cluster", [problem])
    renew = renewal(str(known[name].get("user", "")) if own else "", "" if own else kubeconfig)
    return Cluster(log_in(), namespace, name, renew, log_in)


def _kubeconfig() -> str:
    """The user's kubeconfig. The client reads KUBECONFIG at its import, and takes an empty one for a file."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def contexts() -> tuple[dict[str, Document], str]:
    """The contexts of the user's kubeconfig by name, and the one in use."""
    from kubernetes import config
    from kubernetes.config.config_exception import ConfigException

    try:
        found, current = config.list_kube_config_contexts(_kubeconfig())
    except (ConfigException, TypeError):
        return {}, ""
    return {each["name"]: dict(each.get("context") or {}) for each in found or []}, (current or {}).get(
        "name", ""
    )


def retry_unreachable(
    call: Callable[[], Result],
    notify: Callable[[str], Any],
    *,
    retry_for_s: float = RETRY_FOR_S,
    wait_s: float = 2.0,
) -> Result:
    """Repeat `call` while the cluster does not answer or rejects the login: a restart of the control plane
    must not end a run, and its user can log in again meanwhile.

    Raises:
        ApiError: the call was rejected, or not answered for `retry_for_s`.
    """
    deadline, notified = time.monotonic() + retry_for_s, False
    while True:
        try:
            result = call()
        except ApiError as error:
            if not error.passes or time.monotonic() > deadline:
                raise
            if not notified:
                ended = error.status == 401
                what = error.message if ended else f"the cluster does not answer ({error.message})"
                notify(f"{what}; the run continues there; retrying")
                notified = True
            time.sleep(wait_s)
        else:
            if notified:
                notify("the cluster answers again")
            return result
