"""An HTTP tool server on loopback that counts what reaches it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit


@dataclass
class ToolServer:
    """`GET /read?n=` and `POST /write` with `{"n": ...}`; both answer what they were asked."""

    port: int = 0
    reads: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    delay_seconds: float = 0.0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split()
                length = 0
                while (header := (await reader.readline()).decode().strip().lower()) != "":
                    if header.startswith("content-length:"):
                        length = int(header.partition(":")[2])
                body = await reader.readexactly(length)
                content = await self.work(method, target, body)
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
                writer.write(head.encode() + content)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def work(self, method: str, target: str, body: bytes) -> bytes:
        """Does what a request asks for; its answer."""
        if method == "POST":
            n = str(json.loads(body)["n"])
            self.writes[n] += 1
        else:
            n = parse_qs(urlsplit(target).query)["n"][0]
            self.reads[n] += 1
        await asyncio.sleep(self.delay_seconds)
        return json.dumps({"n": n}).encode()


_Server = TypeVar("_Server", bound=ToolServer)


@asynccontextmanager
async def serving(tools: _Server) -> AsyncIterator[_Server]:
    """Serves tools on a free port."""
    server = await asyncio.start_server(tools.answer, "127.0.0.1", 0)
    tools.port = server.sockets[0].getsockname()[1]
    try:
        yield tools
    finally:
        server.close()


@asynccontextmanager
async def tool_server() -> AsyncIterator[ToolServer]:
    """Serves reads and writes that are counted."""
    async with serving(ToolServer()) as tools:
        yield tools


def policy(tools: ToolServer) -> str:
    """A policy file with a Python tool, a read and a write that may not be repeated."""
    return f"""
policies:
  - name: test
    mode: MODE_EXACT
    tools:
      - {{tool: dedent, effect: EFFECT_PURE, speculate: true}}
      - tool: read
        effect: EFFECT_READ
        reads: [{{template: "numbers/{{n}}", scope: RESOURCE_SCOPE_SHARED}}]
        max_staleness_seconds: 0
      - tool: write
        effect: EFFECT_WRITE
        writes: [{{template: "log", scope: RESOURCE_SCOPE_SHARED}}]
servers:
  - name: python
    tools:
      - name: dedent
        input_schema: '{{"type": "object", "properties": {{"text": {{"type": "string"}}}}, "required": ["text"]}}'
        python: {{entry_point: "textwrap:dedent"}}
  - name: http
    tools:
      - {{name: read, http: {{method: GET, url: "http://127.0.0.1:{tools.port}/read"}}}}
      - {{name: write, http: {{method: POST, url: "http://127.0.0.1:{tools.port}/write", json_body: true}}}}
"""
