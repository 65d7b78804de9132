"""Content by digest."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from forerun.runtime.bus_errors import DigestMismatch
from forerun.runtime.errors import InvalidArgument, NotFound, Unavailable
from forerun.runtime.topology import RESULTS
from tests.contract.runtime_bus.platforms import Platform

LARGE = bytes(range(256)) * 2000


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def test_what_was_put_comes_back_by_its_digest(platform: Platform) -> None:
    objects = (await platform.bus()).objects(RESULTS)
    bodies = [b"", b"x", LARGE, b"x" * (128 * 1024), b"x" * (128 * 1024 + 1)]
    for data in bodies:
        digest = await objects.put(data, "tenant")
        assert digest == digest_of(data)
        assert await objects.put(data, "tenant") == digest
        assert await objects.get(digest, "tenant") == data
    assert await objects.digests("tenant") == sorted(digest_of(data) for data in bodies)


async def test_tenants_are_apart_and_erased_apart(platform: Platform) -> None:
    objects = (await platform.bus()).objects(RESULTS)
    digest = await objects.put(LARGE, "a b")
    with pytest.raises(NotFound):
        await objects.get(digest, "a")
    await objects.put(LARGE, "a")
    other = await objects.put(b"other", "a")
    assert await objects.digests("a") == sorted([digest, other])
    await objects.erase("a")
    await objects.erase("a")
    assert await objects.digests("a") == []
    with pytest.raises(NotFound):
        await objects.get(digest, "a")
    assert await objects.get(digest, "a b") == LARGE
    await objects.delete(digest, "a b")
    await objects.delete(digest, "a b")
    with pytest.raises(NotFound):
        await objects.get(digest, "a b")
    assert await objects.put(LARGE, "a b") == digest
    assert await objects.get(digest, "a b") == LARGE


async def test_the_same_content_stored_by_many_at_once_is_whole(platform: Platform) -> None:
    buses = [await platform.bus() for _ in range(4)]
    digests = await asyncio.gather(*(bus.objects(RESULTS).put(LARGE, "t") for bus in buses))
    assert set(digests) == {digest_of(LARGE)}
    assert await buses[0].objects(RESULTS).get(digests[0], "t") == LARGE
    assert await buses[0].objects(RESULTS).digests("t") == [digests[0]]


async def test_damaged_content_is_never_handed_out(platform: Platform) -> None:
    objects = (await platform.bus()).objects(RESULTS)
    digest = await objects.put(b"content", "t")
    await platform.damage(RESULTS, digest, "t")
    with pytest.raises(DigestMismatch):
        await objects.get(digest, "t")


async def test_a_malformed_digest_is_refused_and_an_unknown_one_not_found(platform: Platform) -> None:
    objects = (await platform.bus()).objects(RESULTS)
    with pytest.raises(NotFound):
        await objects.get(digest_of(b"never stored"), "t")
    for malformed in ("", "sha256:", "md5:abc", digest_of(b"")[:-1], "sha256:" + "." * 64):
        with pytest.raises(InvalidArgument):
            await objects.get(malformed, "t")


async def test_during_an_outage_objects_fail_with_a_typed_error(platform: Platform) -> None:
    objects = (await platform.bus()).objects(RESULTS)
    digest = await objects.put(LARGE, "t")
    await platform.outage()
    with pytest.raises(Unavailable):
        await objects.get(digest, "t")
    with pytest.raises(Unavailable):
        await objects.put(b"new", "t")
    await platform.recover()
    assert await objects.get(digest, "t") == LARGE
