"""What the client repeats because it may not import the platform has to be what the platform says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import forerun.client
import forerun.client.compiler
from forerun.client import Mode, Served, Status, Totals, _asking, _calls, _channel, _json, _tools
from forerun.client._errors import _CLASS_OF_CODE
from forerun.core import limits, outcomes
from forerun.runtime import kserve
from forerun.runtime.errors import ForerunError
from forerun.runtime.network import NetworkOptions
from forerun.runtime.network_grpc import channel_options, server_options
from forerun.v1 import session_pb2


def test_channels_are_those_of_the_platform() -> None:
    assert dict(_channel.channel_options()) == dict(channel_options(NetworkOptions()))


def test_servers_accept_the_clients_pings() -> None:
    """What counts is what the two sides are told, in the library's own words."""
    server = dict(server_options(NetworkOptions()))
    for channel in (dict(_channel.channel_options()), dict(channel_options(NetworkOptions()))):
        assert 2 * int(server["grpc.http2.min_ping_interval_without_data_ms"]) < int(channel["grpc.keepalive_time_ms"])
        assert server["grpc.keepalive_permit_without_calls"] == channel["grpc.keepalive_permit_without_calls"] == 1
        assert channel["grpc.http2.max_pings_without_data"] == 0, "else pings of an idle stream run out"


def test_model_servers_are_not_pinged() -> None:
    """Triton takes one ping in five minutes, and none without a call."""
    assert not {key for key, _ in kserve.CHANNEL_OPTIONS if "keepalive" in key or "ping" in key}


def test_every_option_is_one_that_the_library_knows() -> None:
    """An unknown one is taken without a word, and does nothing."""
    told = [
        *_channel.channel_options(),
        *channel_options(NetworkOptions()),
        *server_options(NetworkOptions(max_connection_age_seconds=1.0)),
        *kserve.CHANNEL_OPTIONS,
    ]
    assert unknown(key for key, _ in told) == set()
    assert unknown(["grpc.keepalive_time_ms", "grpc.keepalive_tyme_ms"]) == {"grpc.keepalive_tyme_ms"}


def unknown(keys: Iterable[str]) -> set[str]:
    """Those that the library itself does not name."""
    found = find_spec("grpc._cython.cygrpc")
    assert found is not None and found.origin is not None
    library = Path(found.origin).read_bytes()
    return {key for key in keys if key.encode() + b"\0" not in library}


def test_bounds_are_those_of_the_platform() -> None:
    assert _channel.MESSAGE_BYTES == limits.MESSAGE_BYTES
    assert _json.JSON_DEPTH == limits.JSON_DEPTH
    assert _json.NUMBER_DIGITS == limits.NUMBER_DIGITS
    assert _calls.RESULT_BYTES == limits.RESULT_BYTES
    assert _calls.CALLS_PER_MESSAGE == limits.CALLS_PER_MESSAGE
    assert _calls.DEADLINE_MAX_SECONDS == limits.DEADLINE_MAX_SECONDS
    assert _asking.DEADLINE_DEFAULT_SECONDS == limits.DEADLINE_DEFAULT_SECONDS
    assert _tools.RESULT_BYTES < limits.MESSAGE_BYTES


def test_words_are_those_of_the_platform() -> None:
    assert {one.name for one in Status} == {one.name for one in outcomes.CallStatus}
    # What runs around the platform has a word that the platform never says.
    assert {one.name for one in Served} - {"FALLBACK"} == {one.name for one in outcomes.Served}
    assert {one.name for one in Mode} == {one.name for one in outcomes.Mode}
    assert {one.name for one in dataclasses.fields(Totals)} == set(session_pb2.Totals.DESCRIPTOR.fields_by_name)


def test_every_kind_of_error_of_the_platform_has_its_class() -> None:
    codes = {kind.code for kind in ForerunError.__subclasses__()} - {ForerunError.code}
    assert codes <= set(_CLASS_OF_CODE)


@pytest.mark.parametrize("module", [forerun.client, forerun.client.compiler])
def test_public_names(module: ModuleType) -> None:
    names = sorted(module.__all__)
    assert names == list(module.__all__)
    assert all(not name.startswith("_") and getattr(module, name) is not None for name in names)
