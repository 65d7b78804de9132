"""Servers beside the platform: tools, replicas of a model, a plain gRPC echo as the machine's floor, spans.

    python -m tests.bench.servers tools|models|echo|spans

writes its port as the first line and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

TOOL_SECONDS: Final = {
    "instant": 0.0, "post": 0.0, "walk": 0.020, "stroll": 0.060,
    "look": 0.035, "note": 0.025, "fetch": 0.200, "find": 0.020,
}  # fmt: skip
"""The tools, and how long each takes."""
MODEL_SECONDS: Final = 0.020
"""Until the first token of a model."""
STRAGGLERS: Final = {"find": (0.02, 20.0), "model": (0.02, 20.0)}
"""Tools of which a share of the calls takes so many times as long, at the first address only."""
ECHO_METHOD: Final = "/bench.Echo/Once"
ECHO_STREAM: Final = "/bench.Echo/Stream"
_PADDING: Final = "x" * 200
_EVENTS: Final = (
    b'data: {"choices": [{"delta": {"content": "yes"}}]}\n\n'
    b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 1}}\n\n'
    b"data: [DONE]\n\n"
)
_COMPLETION: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(_EVENTS) + _EVENTS
)


def following(name: str) -> str:
    """What comes after a name: never the same twice, and in every answer."""
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def _times(tool: str, name: str) -> float:
    """How many times as long as usual a call takes, by its name alone: the same for whoever asks."""
    share, times = STRAGGLERS.get(tool, (0.0, 1.0))
    draw = hashlib.blake2b(f"{tool} {name}".encode(), digest_size=8).digest()
    return times if int.from_bytes(draw) / 2.0**64 < share else 1.0


class Tools:
    """`POST /TOOL` with `{"id": ...}`: an HTTP/1.1 server that does nothing but what is needed."""

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while line := await reader.readline():
                target = line.split()[1].decode()
                length = 0
                while (header := (await reader.readline()).strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                body = json.dumps(await self._answer(target, await reader.readexactly(length))).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                    + body
                )
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, target: str, body: bytes) -> Any:
        tool, first = target.removeprefix("/").removeprefix("other/"), not target.startswith("/other/")
        if tool == "launches":
            return self.launches
        name = str(json.loads(body)["id"])
        self.launches[tool] += 1
        if seconds := TOOL_SECONDS[tool]:
            await asyncio.sleep(seconds * _times(tool, name) if first else seconds)
        # The monotonic clock is the machine's: whoever reads it here knows how long the answer was on its way.
        return {"id": name, "next": following(name), "text": _PADDING, "ended": time.monotonic()}


class Replicas:
    """Two replicas of a model, `/first/v1` and `/other/v1`: chat completions that say one word, streamed."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while line := await reader.readline():
                first, length = b"/first/" in line, 0
                while (header := (await reader.readline()).strip().lower()) != b"":
                    if header.startswith(b"content-length:"):
                        length = int(header.partition(b":")[2])
                name = json.loads(await reader.readexactly(length))["messages"][0]["content"]
                times = _times("model", name) if first else 1.0
                await asyncio.sleep(MODEL_SECONDS * times)
                writer.write(_COMPLETION)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _http(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> int:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    return int(server.sockets[0].getsockname()[1])


async def _echo_once(request: bytes, _: Any) -> bytes:
    return request


async def _echo_stream(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


class _Spans(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans and forgets them."""

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        return trace_service_pb2.ExportTraceServiceResponse()


async def _grpc_server(kind: str) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    if kind == "spans":
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Spans(), server)  # type: ignore[no-untyped-call]
    else:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Once": grpc.unary_unary_rpc_method_handler(_echo_once),
            "Stream": grpc.stream_stream_rpc_method_handler(_echo_stream),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def _main(kind: str) -> None:
    plain = {"tools": Tools().serve, "models": Replicas().serve}.get(kind)
    server, port = (None, await _http(plain)) if plain is not None else await _grpc_server(kind)
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    if server is not None:
        await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
