"""Requests to the API server: each has a deadline, each failure is typed, nothing is repeated here.

Objects are plain JSON; whoever reconciles repeats by looking again, which is the only retry that is right for a
level-based controller.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx

from forerun.operator.kubernetes.access import Access
from forerun.operator.kubernetes.errors import ApiError, Unreachable, error_of

Object = dict[str, Any]
"""An object of the API as JSON."""

FIELD_MANAGER: Final = "forerun-operator"
"""The one name under which this operator owns fields."""

_REQUEST_SECONDS: Final = 15.0
_CONNECT_SECONDS: Final = 5.0
_LIST_SECONDS: Final = 60.0
_WATCH_SECONDS: Final = 30
_SILENCE_SECONDS: Final = _WATCH_SECONDS + 10.0
_PAGE: Final = 500
_CONNECTIONS: Final = 32
# Nobody looks at what an apply has made of an object: the watch brings it.
_METADATA_ALONE: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class Client:
    """A connection pool to one API server.

    Args:
        access: Where it is and who we are.
        transport: Carries requests; None dials for real.
    """

    def __init__(self, access: Access, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._access = access
        self._http = httpx.AsyncClient(
            base_url=access.url,
            verify=access.tls,
            transport=transport,
            trust_env=False,
            limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
            timeout=httpx.Timeout(_REQUEST_SECONDS, connect=_CONNECT_SECONDS),
            headers={"User-Agent": FIELD_MANAGER},
        )

    @property
    def namespace(self) -> str:
        """The namespace that this process is in."""
        return self._access.namespace

    async def get(self, path: str, parameters: Mapping[str, str] | None = None) -> Object:
        """One object, or whatever the address gives.

        Raises:
            ApiError: see errors.py.
        """
        return await self._request("GET", path, parameters=parameters)

    async def create(self, path: str, body: Object) -> Object:
        """Creates an object in the collection at `path`."""
        return await self._request("POST", path, body, parameters={"fieldManager": FIELD_MANAGER})

    async def replace(self, path: str, body: Object) -> Object:
        """Replaces an object, only in the resource version that `body` names."""
        return await self._request("PUT", path, body, parameters={"fieldManager": FIELD_MANAGER})

    async def apply(self, path: str, body: Object) -> None:
        """Server-side apply: owns exactly the fields in `body`, and takes them over from whoever wrote them by hand."""
        await self._request(
            "PATCH",
            path,
            body,
            parameters={"fieldManager": FIELD_MANAGER, "force": "true"},
            content_type="application/apply-patch+yaml",
            accept=_METADATA_ALONE,
        )

    async def merge(self, path: str, body: Object) -> Object:
        """Changes the fields in `body`, by a JSON merge patch."""
        return await self._request(
            "PATCH",
            path,
            body,
            parameters={"fieldManager": FIELD_MANAGER},
            content_type="application/merge-patch+json",
        )

    async def delete(self, path: str) -> None:
        """Deletes an object.

        Raises:
            ApiError: `Missing` where there is none.
        """
        await self._request("DELETE", path)

    async def list(self, path: str) -> tuple[list[Object], str]:
        """All objects of a collection, page by page, and the resource version to watch from.

        Raises:
            ApiError: `Expired` where the pages took too long; ask again.
        """
        items: list[Object] = []
        parameters = {"limit": str(_PAGE)}
        while True:
            page = await self._request("GET", path, parameters=parameters, timeout_seconds=_LIST_SECONDS)
            items.extend(page.get("items", []))
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return items, str(metadata["resourceVersion"])
            parameters["continue"] = metadata["continue"]

    async def watch(self, path: str, version: str) -> AsyncIterator[tuple[str, Object]]:
        """Changes of a collection after a resource version: (`ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK`; object).

        Ends by itself after half a minute, so that a connection that died without a word is noticed soon after; go on
        from the last resource version seen.

        Raises:
            ApiError: `Expired` where the version is too old.
        """
        parameters = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        timeout = httpx.Timeout(_REQUEST_SECONDS, connect=_CONNECT_SECONDS, read=_SILENCE_SECONDS)
        with _typed(path):
            async with self._http.stream(
                "GET", path, params=parameters, headers=self._headers(), timeout=timeout
            ) as response:
                if response.status_code >= 300:
                    raise _error(response, await response.aread())
                async for line in response.aiter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise error_of(int(event["object"].get("code", 0)), event["object"])
                    yield event["type"], event["object"]

    async def close(self) -> None:
        """Closes all connections."""
        await self._http.aclose()

    def _headers(self, content_type: str = "application/json", accept: str = "application/json") -> dict[str, str]:
        headers = {"Content-Type": content_type, "Accept": accept}
        token = self._access.token()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    async def _request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        parameters: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout_seconds: float = _REQUEST_SECONDS,
    ) -> Object:
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        with _typed(path):
            response = await self._http.request(
                method,
                path,
                content=content,
                params=dict(parameters or {}),
                headers=self._headers(content_type, accept),
                timeout=httpx.Timeout(timeout_seconds, connect=_CONNECT_SECONDS),
            )
        if response.status_code >= 300:
            raise _error(response, response.content)
        found = response.json()
        if not isinstance(found, dict):
            raise ApiError(response.status_code, "Unexpected", f"{path} gave no object")
        return found


@contextmanager
def _typed(path: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise Unreachable(f"{path}: {type(error).__name__}") from error


def _error(response: httpx.Response, content: bytes) -> ApiError:
    try:
        body = json.loads(content)
    except ValueError:
        body = {}
    return error_of(response.status_code, body if isinstance(body, dict) else {}, response.headers.get("Retry-After"))
