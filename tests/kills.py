"""A process of a platform in memory dies."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from forerun.cli.virtual import SERVICES, VirtualPlatform


async def kill(platform: VirtualPlatform, name: str, *, services: Iterable[str] = SERVICES) -> None:
    """Ends a service like SIGKILL: from now on nothing it does reaches anybody; then its remains are swept up.

    Args:
        platform: Where it runs; a service that does not run there is left alone.
        name: Which.
        services: All services of the platform.
    """
    app = platform.apps.pop(name, None)
    if app is None:
        return
    bus, fabric = platform._buses.pop(name), platform.fabric
    bus.cut()  # from here to the first await nothing else runs, so this is the moment of its death
    others = [f"{other}:1" for other in services if other != name]
    for other in others:
        fabric.refuse(other, source=name)
        fabric.drop(other, source=name)
    fabric.refuse(f"{name}:1")
    fabric.drop(f"{name}:1")
    logging.disable()  # a killed process complains no more
    await app.stop(0.0)
    await bus.close(0.0)
    logging.disable(logging.NOTSET)
    for other in others:
        fabric.heal(other, source=name)
    fabric.heal(f"{name}:1")
