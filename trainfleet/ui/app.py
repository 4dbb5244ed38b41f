"""The routes of the console. Each answers with a template and what a module of `pages` computes for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from trainfleet import __version__
from trainfleet.errors import TrainfleetError
from trainfleet.training.cli.runs_cost import GROUPS
from trainfleet.training.runtime.progress import duration, number
from trainfleet.ui.cluster_state import ClusterStates
from trainfleet.ui.pages import clusters as clusters_page
from trainfleet.ui.pages import run as run_page
from trainfleet.ui.pages import runs as runs_page
from trainfleet.ui.pages import stacks as stacks_page
from trainfleet.ui.review_files import ReviewFiles
from trainfleet.ui.run_store import ListedRun, RunStore
from trainfleet.ui.stack_specs import StackSpecs

STATIC = {"ui.css": "text/css", "ui.js": "text/javascript", "icon.svg": "image/svg+xml"}
FIND_WAIT_S = 3.0
"""How long the page of a run that is not in the list yet waits for the list."""


class Console:
    """The application, and what it shows."""

    def __init__(
        self,
        runs: RunStore,
        stacks: StackSpecs | None = None,
        reviews: ReviewFiles | None = None,
        clusters: ClusterStates | None = None,
    ) -> None:
        self.runs, self.stacks = runs, stacks or StackSpecs(None)
        self.reviews, self.clusters = reviews or ReviewFiles(None), clusters or ClusterStates([])
        self.app = Starlette(
            routes=[
                Route("/", self.list_page),
                Route("/cost", self.cost_page),
                Route("/compare", self.compare_page),
                Route("/runs/{place:int}/{folder}", self.run_page),
                Route("/stacks", self.stacks_page),
                Route("/stacks/{name}", self.stack_page),
                Route("/clusters", self.clusters_page),
                Route("/static/{name}", static),
            ],
            exception_handlers={HTTPException: _failed, TrainfleetError: _unreadable},
        )
        self.runs.refresh()

    def list_page(self, request: Request) -> Response:
        """The runs."""
        state, text = request.query_params.get("state", runs_page.ALL), request.query_params.get("text", "")
        if state not in runs_page.SHOWN_STATES:
            raise HTTPException(404, f"There is no state {state}: use {', '.join(runs_page.SHOWN_STATES)}.")
        return page("runs.html", "Runs", **runs_page.contents(self.runs, state, text[:200]))

    def cost_page(self, request: Request) -> Response:
        """What the runs have cost."""
        by = request.query_params.get("by", "owner")
        if by not in GROUPS:
            raise HTTPException(404, f"Costs are added up by {', '.join(GROUPS)}.")
        return page("cost.html", "Cost", **runs_page.cost(self.runs, by))

    def run_page(self, request: Request) -> Response:
        """One run."""
        run = self._run(request.path_params["place"], request.path_params["folder"])
        return page("run.html", run.info.name, **run_page.contents(self.runs, run))

    def compare_page(self, request: Request) -> Response:
        """Several runs."""
        chosen = list(dict.fromkeys(request.query_params.getlist("run")))
        if len(chosen) == 1:
            place, _, folder = chosen[0].partition("/")
            return RedirectResponse(f"/runs/{quote(place, safe='')}/{quote(folder, safe='')}", 303)
        if not 2 <= len(chosen) <= run_page.MOST_COMPARED:
            text = f"Choose 2 to {run_page.MOST_COMPARED} runs in the list; {len(chosen)} are chosen."
            raise HTTPException(400, text)
        runs = []
        for each in chosen:
            place, _, folder = each.partition("/")
            runs.append(self._run(int(place) if place.isdecimal() and len(place) < 6 else -1, folder))
        return page("compare.html", "Comparison", **run_page.compared(self.runs, runs))

    def stacks_page(self, _request: Request) -> Response:
        """The stacks of the project."""
        return page("stacks.html", "Stacks", **stacks_page.contents(self.stacks, self.reviews))

    def stack_page(self, request: Request) -> Response:
        """One stack."""
        name = request.path_params["name"]
        found = stacks_page.one(name, self.stacks, self.reviews)
        if found is None:
            raise HTTPException(404, "There is no such stack in the project or in the files.")
        return page("stack.html", name, **found)

    def clusters_page(self, _request: Request) -> Response:
        """The clusters that were named."""
        return page("clusters.html", "Clusters", **clusters_page.contents(self.clusters))

    def _run(self, place: int, folder: str) -> ListedRun:
        found = self.runs.find(place, folder, FIND_WAIT_S)
        if found is None:
            raise HTTPException(404, "There is no such run in the list.")
        return found


def page(template: str, title: str, code: int = 200, **values: Any) -> Response:
    """A page of a template."""
    text = (
        _environment()
        .get_template(template)
        .render(title=title, version=__version__, at=runs_page.now(), **values)
    )
    return HTMLResponse(text, code)


def static(request: Request) -> Response:
    """A file of the package."""
    name = request.path_params["name"]
    if name not in STATIC:
        raise HTTPException(404, "There is no such page.")
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(_static_file(name), media_type=STATIC[name], headers=headers)


@cache
def _static_file(name: str) -> bytes:
    return files("trainfleet.ui").joinpath("static", name).read_bytes()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("trainfleet.ui"), PrefixLoader({"training": PackageLoader("trainfleet.training")})]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {"duration": duration, "number": number, "segment": _segment}
    environment.filters.update(filters)
    return environment


def _segment(text: str) -> str:
    """A part of a path in a link."""
    return quote(str(text), safe="")


def _failed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = error.detail if error.detail != "Not Found" else "There is no such page."
    return page("error.html", f"Error {error.status_code}", error.status_code, text=text, problems=())


def _unreadable(_request: Request, error: Exception) -> Response:
    assert isinstance(error, TrainfleetError)
    return page("error.html", "Not readable", 503, text=error.summary, problems=error.problems)
