"""An API server for one test: what it answers is a function of what it is asked."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx

from forerun.operator.kubernetes.access import Access
from forerun.operator.kubernetes.client import Client

Object = dict[str, Any]
Answer = Callable[[httpx.Request], httpx.Response]


def client(answer: Answer) -> Client:
    """A client of that server. Nothing is dialled."""
    access = Access("https://api.test", ssl.create_default_context(), None, "here")
    return Client(access, transport=httpx.MockTransport(answer))


def said(body: Object, status: int = 200) -> httpx.Response:
    """An answer."""
    return httpx.Response(status, json=body)


def refused(status: int, reason: str, **headers: str) -> httpx.Response:
    """A Status object."""
    return httpx.Response(status, json={"kind": "Status", "reason": reason, "message": reason}, headers=headers)


class Stream(httpx.AsyncByteStream):
    """Events of a watch, then silence that the client gives up, or an orderly end."""

    def __init__(self, events: Sequence[tuple[str, Object]], *, silent: bool = False) -> None:
        self._events = events
        self._silent = silent

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for what, found in self._events:
            yield json.dumps({"type": what, "object": found}).encode() + b"\n"
        if self._silent:
            raise httpx.ReadTimeout("nothing was heard")


def an_object(name: str, version: int, *, generation: int = 1, uid: str = "u") -> Object:
    metadata = {
        "name": name, "namespace": "here", "uid": uid, "generation": generation, "resourceVersion": str(version),
        "managedFields": [{"manager": "somebody"}],
    }  # fmt: skip
    return {"metadata": metadata, "spec": {}}
