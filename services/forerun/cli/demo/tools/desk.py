"""The research desk: search, fetch, SQL and notes over HTTP, as a process of its own.

`python -m forerun.cli.demo.tools.desk --data DIR --seed N --scale X` prints the port it listens on, as one JSON line,
and serves until it is told to end. In a pod it is told host and port, and serves other pods. The session's label is the
first part of every path.
"""

import argparse
import json
import socket
import sqlite3
import sys
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.cli.demo.draws import Draws
from forerun.cli.demo.library import Library, load_library
from forerun.cli.demo.tools.log import ExecutionLog
from forerun.cli.demo.tools.pace import paced
from forerun.core.canonical import JsonValue

WAREHOUSE_FILE = "warehouse.sqlite"
NOTES_FILE = "notes.sqlite"
LOG_FILE = "executions.jsonl"
_ROWS = 50
# Longer than any pause of an agent: a connection that the desk closes just as a call is sent on it ends in doubt.
_KEEP_ALIVE_SECONDS = 600


def build_databases(data: Path) -> None:
    """Makes the warehouse from the shipped SQL text, and an empty book of notes. Existing files are replaced."""
    for name in (WAREHOUSE_FILE, NOTES_FILE):
        (data / name).unlink(missing_ok=True)
    text = (files("forerun.cli.demo") / "assets" / "warehouse.sql").read_text(encoding="utf-8")
    with closing(sqlite3.connect(data / WAREHOUSE_FILE)) as warehouse:
        warehouse.executescript(text)
    with closing(sqlite3.connect(data / NOTES_FILE)) as notes:
        notes.execute("CREATE TABLE notes (label TEXT NOT NULL, ticket TEXT NOT NULL, text TEXT NOT NULL)")
        notes.commit()


class Desk:
    """The tools behind the routes."""

    def __init__(self, *, library: Library, data: Path, draws: Draws, log: ExecutionLog) -> None:
        self._library = library
        self._draws = draws
        self._log = log
        self._warehouse = sqlite3.connect(f"file:{quote(str(data / WAREHOUSE_FILE))}?mode=ro", uri=True)
        self._notes = sqlite3.connect(data / NOTES_FILE)

    async def search(self, request: Request) -> Response:
        """The best documents for the query `q`."""
        query = request.query_params.get("q", "")
        label = self._enter(request, "search", {"q": query})
        async with paced(self._draws, label, "search", {"q": query}):
            answer: JsonValue = {"query": query, "hits": self._library.search(query)}
        return _json(answer)

    async def fetch(self, request: Request) -> Response:
        """One document."""
        wanted: str = request.path_params["id"]
        label = self._enter(request, "fetch", {"id": wanted})
        async with paced(self._draws, label, "fetch", {"id": wanted}):
            document = self._library.documents.get(wanted)
        return _json(document.as_json()) if document else _json({"error": f"no document {wanted}"}, 404)

    async def warehouse(self, request: Request) -> Response:
        """The rows of one SQL query; the file is opened read-only."""
        arguments = await request.json()
        label = self._enter(request, "warehouse", arguments)
        async with paced(self._draws, label, "warehouse", arguments):
            try:
                cursor = self._warehouse.execute(arguments["sql"], arguments.get("values", []))
                names = [column[0] for column in cursor.description or ()]
                rows: list[JsonValue] = [dict(zip(names, row, strict=True)) for row in cursor.fetchmany(_ROWS)]
            except (sqlite3.Error, KeyError, TypeError) as error:
                return _json({"error": str(error)}, 400)
        return _json({"rows": rows})

    async def add_note(self, request: Request) -> Response:
        """Adds a note to a ticket. Each call adds one: it may not be repeated."""
        arguments = await request.json()
        label = self._enter(request, "add_note", arguments)
        async with paced(self._draws, label, "add_note", arguments):
            row = (label, arguments["ticket"], arguments["text"])
            self._notes.execute("INSERT INTO notes VALUES (?, ?, ?)", row)
            self._notes.commit()
        return _json({"ticket": arguments["ticket"], "notes": len(self._texts(label, arguments["ticket"]))})

    async def list_notes(self, request: Request) -> Response:
        """The notes of a ticket, in the order in which they were added."""
        ticket: str = request.path_params["ticket"]
        label = self._enter(request, "list_notes", {"ticket": ticket})
        async with paced(self._draws, label, "list_notes", {"ticket": ticket}):
            texts = self._texts(label, ticket)
        return _json({"ticket": ticket, "notes": texts})

    def _texts(self, label: str, ticket: str) -> list[JsonValue]:
        query = "SELECT text FROM notes WHERE label = ? AND ticket = ? ORDER BY rowid"
        return [row[0] for row in self._notes.execute(query, (label, ticket))]

    def _enter(self, request: Request, tool: str, arguments: dict[str, JsonValue]) -> str:
        label: str = request.path_params["label"]
        self._log.started(label, tool, arguments)
        return label

    async def healthy(self, _request: Request) -> Response:
        """It serves."""
        return _json({"status": "ok"})

    def routes(self) -> list[Route]:
        """The routes of the service."""
        return [
            Route("/healthz", self.healthy, methods=["GET"]),
            Route("/{label}/search", self.search, methods=["GET"]),
            Route("/{label}/documents/{id}", self.fetch, methods=["GET"]),
            Route("/{label}/warehouse", self.warehouse, methods=["POST"]),
            Route("/{label}/notes", self.add_note, methods=["POST"]),
            Route("/{label}/notes/{ticket}", self.list_notes, methods=["GET"]),
        ]


def _json(value: JsonValue, status: int = 200) -> Response:
    return Response(json.dumps(value, ensure_ascii=False), status_code=status, media_type="application/json")


def main() -> None:
    """Builds the databases, says the port and serves."""
    parser = argparse.ArgumentParser(prog="desk")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default loopback)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default a free one)")
    options = parser.parse_args()
    build_databases(options.data)
    desk = Desk(
        library=load_library(),
        data=options.data,
        draws=Draws(options.seed, options.scale),
        log=ExecutionLog(options.data / LOG_FILE),
    )
    listener = socket.create_server((options.host, options.port), backlog=512)
    config = uvicorn.Config(
        Starlette(routes=desk.routes()),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    sys.stdout.close()
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
