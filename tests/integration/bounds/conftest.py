"""The whole platform in memory, as for the cases; here its bounds are lowered until tests reach them."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from forerun.v1 import session_pb2, session_pb2_grpc
from tests.integration.cases.conftest import Stage, play, policy, tool

__all__ = ["RULES", "Raw", "batch_of", "hello_of", "play", "stub_of"]

RULES = policy(
    tool("get", "READ", reads=["o/{id}"], concurrency=100, speculate=True),
    tool("set", "WRITE", writes=["o/{id}"]),
    tool("big", "READ", reads=["big/{bytes}"]),
    tool("write_big", "WRITE", writes=["big/{bytes}"]),
)


def stub_of(stage: Stage) -> session_pb2_grpc.SessionServiceStub:
    """The service, without the client's help."""
    return session_pb2_grpc.SessionServiceStub(stage.platform.channel())


def hello_of(session: str, **more: Any) -> session_pb2.Hello:
    """Opens a session."""
    return session_pb2.Hello(session=session, agent="a", **more)


def batch_of(turn: int, *calls: tuple[str, bytes], leave_out: Container[int] = ()) -> session_pb2.CallBatch:
    """The calls of one message, each a tool with its arguments; without those that were answered already."""
    batch = session_pb2.CallBatch(turn=turn)
    for index, (name, arguments) in enumerate(calls):
        if index in leave_out:
            continue
        one = batch.calls.add(index=index)
        one.action.tool, one.action.arguments = name, arguments
    return batch


class Raw:
    """A client that does what its test says and nothing else: it need not read, and may vanish."""

    def __init__(self, stage: Stage, session: str, *, resume: bool = False) -> None:
        self.session = session
        self._hello = hello_of(session, resume=resume)
        self.call: Any = stub_of(stage).Connect()

    async def open(self) -> session_pb2.Welcome:
        """Says hello and hears the welcome."""
        await self.call.write(session_pb2.ConnectRequest(hello=self._hello))
        first: session_pb2.ConnectResponse = await self.call.read()
        return first.welcome

    async def ask(self, turn: int, *calls: tuple[str, bytes], leave_out: Container[int] = ()) -> None:
        """Sends the calls of one message."""
        await self.call.write(session_pb2.ConnectRequest(batch=batch_of(turn, *calls, leave_out=leave_out)))

    async def result(self) -> session_pb2.CallResult:
        """The next message, which is a result."""
        message: session_pb2.ConnectResponse = await self.call.read()
        assert message.HasField("result"), message
        return message.result

    def vanish(self) -> None:
        """Goes away without a word."""
        self.call.cancel()
