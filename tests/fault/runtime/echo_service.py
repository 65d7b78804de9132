"""A service made of the chassis alone, started as a process by the fault tests. Prints its address when it is ready."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import grpc
import grpc.aio

from forerun.runtime.app import App, Callbacks, Part, Served
from forerun.runtime.chassis import chassis_parts, make_chassis
from forerun.runtime.settings import ServiceSettings, main_for, service_config

SERVICE = "test.v1.Echo"


class EchoSettings(ServiceSettings):
    """The echo service."""

    model_config = service_config("echo")

    hang_at_stop: bool = False
    """Whether a part hangs when the process stops, also in a thread that nobody can end."""


async def call_from_pool(address: str, token: str) -> bytes:
    """One call on a channel that this process made itself."""
    async with grpc.aio.insecure_channel(address) as channel:
        once: Any = channel.unary_unary(f"/{SERVICE}/Once")
        reply: bytes = await once(b"from the pool", timeout=5, metadata=(("authorization", f"Bearer {token}"),))
        return reply


def in_pool(address: str, token: str) -> bytes:
    return asyncio.run(call_from_pool(address, token))


def build(settings: EchoSettings) -> App:
    chassis = make_chassis(settings)
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    async def once(request: bytes, context: Any) -> bytes:
        command, _, argument = request.partition(b" ")
        if command == b"sleep":
            await asyncio.sleep(float(argument))
        if command == b"pool":
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(pool, in_pool, server.address, argument.decode())
        return request

    def register(grpc_server: Any) -> None:
        handlers: dict[str, Any] = {"Once": grpc.unary_unary_rpc_method_handler(once)}
        grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def listening(address: str) -> None:
        sys.stdout.write(address + "\n")
        sys.stdout.flush()

    server = Served(
        chassis.network, "echo", settings.listen_address, [register], services=[SERVICE], listening=listening
    )

    async def close_pool(_: float) -> None:
        pool.shutdown(wait=False, cancel_futures=True)
        if settings.hang_at_stop:
            await asyncio.to_thread(__import__("time").sleep, 3600)

    parts = [
        *chassis_parts(chassis, settings),
        Part("pool", Callbacks(stop=close_pool), stop_seconds=1.0),
        Part("server", server, stop_seconds=None),
    ]
    return App(service="echo", parts=parts, metrics=chassis.metrics)


if __name__ == "__main__":
    sys.exit(main_for(EchoSettings, build)(sys.argv[1:]))
