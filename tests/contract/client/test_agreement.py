"""What the client repeats because it may not import the platform has to be what the platform says."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import pytest

import forerun.client
import forerun.client.compiler
from forerun.client import Mode, Served, Status, Totals, _asking, _calls, _channel, _json, _tools
from forerun.client._errors import _CLASS_OF_CODE
from forerun.core import limits, outcomes
from forerun.runtime.errors import ForerunError
from forerun.runtime.network import NetworkOptions
from forerun.runtime.network_grpc import channel_options
from forerun.v1 import session_pb2


def test_channels_are_those_of_the_platform() -> None:
    assert dict(_channel.channel_options()) == dict(channel_options(NetworkOptions()))


def test_servers_accept_the_clients_pings() -> None:
    assert NetworkOptions().tolerated_ping_seconds < _channel.KEEPALIVE_SECONDS


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
