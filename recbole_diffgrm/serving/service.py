"""A run as an HTTP service: recommendations, how they came about, items, and a page to click through them.

Every answer is JSON but the page; every mistake is {"error": one line}. What uses the model waits for the one thread
that does (worker.py), so nothing here blocks.
"""

import asyncio
import base64
import hashlib
import logging
import math
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib import resources
from typing import Annotated, Any

import uvicorn
from anyio import fail_after
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import AllowInfNan, BaseModel, ConfigDict, Field, Strict
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recbole_diffgrm import __version__
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import first_line
from recbole_diffgrm.serving.recommender import Query, Recommendation, Recommender
from recbole_diffgrm.serving.search import TitleSearch
from recbole_diffgrm.serving.worker import Busy, Worker

logger = logging.getLogger(__name__)

MAX_BODY = 1 << 20  # bytes
TIME_LIMIT = 30  # seconds for a whole request, the upload included
MAX_ADDED = 10_000  # items, of all requests together
DRAIN_SECONDS = 2  # after SIGTERM, for clients to hear that their connection closes

ItemId = Annotated[str, Field(min_length=1, max_length=1000)]
TextValue = Annotated[str, Field(max_length=20_000)]
Column = Annotated[str, Field(min_length=1, max_length=100)]
Number = Annotated[int, Strict()] | Annotated[float, Strict(), AllowInfNan(False)]  # else true is 1.0, and 5 too
ColumnValue = TextValue | list[TextValue] | Number


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Filters(_Request):
    k: int = Field(10, ge=1, le=100, description="how many items")
    allow: list[ItemId] | None = Field(None, max_length=10_000, description="recommend only these")
    exclude: list[ItemId] = Field([], max_length=10_000, description="recommend none of these")
    filter_seen: bool | None = Field(None, description="no items of the history; null: as the run was tested")
    skip_unknown: bool = Field(False, description="ignore unknown item ids instead of refusing them")

    def query(self, history: list[str]) -> Query:
        return Query(history, self.k, self.allow, self.exclude, self.filter_seen, self.skip_unknown)


History = Annotated[list[ItemId], Field(min_length=1, max_length=1000, description="item ids, the most recent last")]


class RecommendRequest(Filters):
    histories: list[History] = Field(min_length=1, max_length=64)


class ExplainRequest(Filters):
    history: History
    k: int = Field(10, ge=1, le=20, description="how many items")


class Recommended(BaseModel):
    item: str
    title: str
    score: float | None = Field(description="what it is ranked by; null for a popular item that fills the list")

    @classmethod
    def of(cls, one: Recommendation) -> dict[str, Any]:
        return {"item": one.item, "title": one.title, "score": one.score if math.isfinite(one.score) else None}


class RecommendResponse(BaseModel):
    lists: list[list[Recommended]] = Field(description="one for each history, best first")


class Choice(BaseModel):
    digit: int = Field(description="from 0")
    code: int
    probability: float = Field(description="of the code, given the history and the digits filled before")
    items_left: int = Field(description="that have it and the digits filled before")


class Step(BaseModel):
    chosen: Choice
    alternatives: list[Choice]
    titles_left: list[str]


class Denoising(BaseModel):
    sid: list[int]
    is_generated: bool = Field(description="false: the search lost it; the most probable way to it is shown")
    num_items: int
    steps: list[Step]


class Explained(Recommended):
    denoising: Denoising


class ExplainResponse(BaseModel):
    recommendations: list[Explained]


class Item(BaseModel):
    item: str
    title: str


class ItemsResponse(BaseModel):
    items: list[Item]
    total: int = Field(description="items that match")


class NewItemsRequest(_Request):
    items: list[dict[Column, ColumnValue]] = Field(
        min_length=1, max_length=100, description="the column of ids, and those of text, that /health names"
    )


class AddedItem(Item):
    sid: list[int]


class AddedItems(BaseModel):
    items: list[AddedItem]


class Health(BaseModel):
    status: str
    model: str
    dataset: str
    version: str
    items: int
    added: int = Field(description="of them, since the service started")
    explains: bool = Field(description="whether /explain can be asked")
    id_column: str = Field(description="of new items")
    text_columns: list[str] = Field(description="of new items; empty where none can be added")
    filters_seen: bool = Field(description="what filter_seen: null means")


class Error(BaseModel):
    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": text}
    for status, text in {
        400: "the body cannot be read",
        413: f"the body is larger than {MAX_BODY:,} bytes",
        422: "wrong input: what is wrong with it",
        503: "too many requests are waiting",
        504: f"not done within {TIME_LIMIT} s",
    }.items()
}


def create_app(recommender: Recommender) -> FastAPI:
    worker, search = Worker(recommender), TitleSearch(recommender)
    num_items = len(recommender.items.names)
    about = describe(recommender)
    page, policy = load_page()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(worker.close)

    app = FastAPI(
        title=f"{recommender.config.model} on {recommender.config.dataset}",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    app.state.is_draining = False
    _answer_errors(app)
    app.add_middleware(Limits, app.state)

    @app.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})

    @app.get("/health")
    async def health() -> Health:
        """What is served."""
        count = len(recommender.items.names)
        return Health(**about, items=count - 1, added=count - num_items)

    @app.post("/recommend", responses=ERRORS)
    async def recommend(asked: RecommendRequest) -> RecommendResponse:
        """The best items for each history."""
        lists = await asyncio.wrap_future(worker.recommend([asked.query(history) for history in asked.histories]))
        return RecommendResponse.model_validate({"lists": [[Recommended.of(one) for one in mine] for mine in lists]})

    @app.post("/explain", responses=ERRORS)
    async def explain(asked: ExplainRequest) -> ExplainResponse:
        """The best items for a history, and how the semantic ID of each was filled, step by step."""

        def trace() -> list[dict[str, Any]]:
            (mine,) = recommender.answer([asked.query(asked.history)])
            traces = recommender.trace(asked.history, [one.item for one in mine], skip_unknown=asked.skip_unknown)
            return [{**Recommended.of(one), "denoising": asdict(of_one)} for one, of_one in zip(mine, traces)]

        return ExplainResponse.model_validate({"recommendations": await asyncio.wrap_future(worker.call(trace))})

    @app.get("/items", responses={422: ERRORS[422], 504: ERRORS[504]})
    def find_items(
        query: Annotated[str, Field(max_length=200, description="words or their parts, in a title or an id")] = "",
        limit: Annotated[int, Field(ge=1, le=100)] = 20,
    ) -> ItemsResponse:
        """Items by title, popular ones first."""
        found, total = search.find(query, limit)
        return ItemsResponse(items=[Item(item=item, title=title) for item, title in found], total=total)

    @app.post("/items", status_code=201, responses=ERRORS)
    async def add_items(asked: NewItemsRequest) -> AddedItems:
        """New items, by their text: recommended from now on, until the service ends."""

        def add() -> list[dict[str, Any]]:
            if len(recommender.items.names) - num_items + len(asked.items) > MAX_ADDED:
                raise UserError(f"items: at most {MAX_ADDED:,} can be added")
            names = recommender.add_items(asked.items)
            search.update()
            titles = recommender.items.titles[-len(names) :]
            return [
                {"item": name, "title": title, "sid": list(recommender.sid(name))} for name, title in zip(names, titles)
            ]

        return AddedItems.model_validate({"items": await asyncio.wrap_future(worker.call(add))})

    return app


def describe(recommender: Recommender) -> dict[str, Any]:
    """What does not change, for /health."""
    try:
        recommender.config.model_class.add_items(recommender.config, recommender.model.state_dict())
        columns = list(recommender.item_encoder.tokenizer.source["fields"])
    except UserError:
        columns = []
    return {
        "status": "ok",
        "model": recommender.config.model,
        "dataset": recommender.config.dataset,
        "version": __version__,
        "explains": recommender.can_explain,
        "id_column": recommender.config["ITEM_ID_FIELD"],
        "text_columns": columns,
        "filters_seen": not recommender.config["repeatable"],
    }


def load_page() -> tuple[str, str]:
    """The page, and a policy that lets nothing but its own script and style run."""
    page = resources.files("recbole_diffgrm.serving").joinpath("page.html").read_text(encoding="utf-8")
    hashes = {
        tag: base64.b64encode(hashlib.sha256(re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)[0].encode()).digest())
        for tag in ("script", "style")
    }
    sources = "; ".join(f"{tag}-src 'sha256-{digest.decode()}'" for tag, digest in hashes.items())
    return (
        page,
        f"default-src 'none'; connect-src 'self'; img-src data:; {sources}; base-uri 'none'; form-action 'none'",
    )


# Errors and limits


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first, *others = error.errors()
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        more = f" (and {len(others)} more)" if others else ""
        return _error(422, f"{where}: {first['msg']}{more}" if where else f"{first['msg']}{more}")

    @app.exception_handler(UserError)
    async def wrong(request: Request, error: UserError) -> JSONResponse:
        return _error(422, str(error))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        return _error(503, "too many requests are waiting: try again later", {"Retry-After": "1"})

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:  # uvicorn logs the traceback
        return _error(500, f"the service failed ({type(error).__name__}: {first_line(error)})")


def _error(status: int, message: str, headers: Any = None) -> JSONResponse:
    """In one line, whatever text of the client is in it: half a surrogate pair cannot be sent."""
    line = " ".join(message.split())[:500].encode("utf-8", "replace").decode()
    return JSONResponse({"error": line}, status, headers)


class Limits:
    """Of a request's size and time. While the service stops, answers say that their connection closes."""

    def __init__(self, app: ASGIApp, state: Any):
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        size, has_started = 0, False

        async def receive_some() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY:
                raise HTTPException(413, f"the body is larger than {MAX_BODY:,} bytes")
            return message

        async def send_some(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                if self.state.is_draining:
                    message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        try:
            with fail_after(TIME_LIMIT):
                await self.app(scope, receive_some, send_some)
        except TimeoutError:
            if not has_started:
                await _error(504, f"not done within {TIME_LIMIT} s")(scope, receive, send_some)


class Server(uvicorn.Server):
    """Says when it is ready, and stops without losing a request: open connections get their answers, and are told to
    close."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]):
        super().__init__(config)
        self.announce = announce

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.announce()

    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        for listening in sockets or []:
            listening.close()
        app = self.config.app
        assert isinstance(app, FastAPI)
        app.state.is_draining = True
        for _ in range(int(DRAIN_SECONDS / 0.05)):
            if not self.server_state.connections:
                break
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)


def serve(recommender: Recommender, listening: socket.socket, announce: Callable[[], None]) -> None:
    """Until a signal comes. `announce` is called once requests can come."""
    config = uvicorn.Config(
        create_app(recommender),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=TIME_LIMIT,
        limit_concurrency=2000,
        h11_max_incomplete_event_size=1 << 16,
        server_header=False,
    )
    Server(config, announce).run(sockets=[listening])
