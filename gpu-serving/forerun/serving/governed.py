"""What the platform decides for a model server, brought to its models while they run.

How deep drafts may be is the operator's decision for the pool whose agents are served, and the kill switch's; whose
histories are erased is anybody's who may. All of it is followed in the key-value store and handed on by `orders`.
While the broker cannot be heard, what was heard last holds, and after a bound everybody is told so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from forerun.core import limits
from forerun.core.tokens.ceiling import Ceiling, CeilingSource, ceiling
from forerun.runtime.bus import Bus, Entry, Subscription
from forerun.runtime.clock import Clock
from forerun.runtime.erasures import ErasedHistories, ServerReport, erasure_of
from forerun.runtime.errors import ForerunError
from forerun.runtime.switch import Switch
from forerun.runtime.topology import CAPACITY, ERASURES, SERVERS
from forerun.serving.backend.orders import Bounds
from forerun.serving.orders import OrderFolder
from forerun.v1 import capacity_pb2

LOOK_SECONDS: Final = 1.0
"""Between two looks at the connection, and two tries to erase at a loop that does not answer."""

REPORT_SECONDS: Final = 10.0
"""Between two reports of a server: well below what its key lives in the store."""

CLOSE_SECONDS: Final = 1.0


class Erases(Protocol):
    """A server whose loop can forget a tenant."""

    async def erase(self, tenant: str, erasure: str) -> Mapping[str, int]:
        """See `Keeper`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What a server follows.

    Attributes:
        name: Of the server, unique among all that live.
        profile: That it serves.
        pool: Whose cap bounds its drafts; empty: no pool's.
        obeys: Its loop is ours, so that it obeys. An engine decides its depth itself.
        silent_seconds: A broker that cannot be heard for longer is said to everybody.
    """

    name: str
    profile: str
    pool: str = ""
    obeys: bool = True
    silent_seconds: float = 30.0


class Governed:
    """Follows what is decided and hands it on.

    Args:
        following: What.
        connect: Connects to the broker; fails where it does not answer.
        orders: Where models hear it.
        server: Erases.
        clock: Tells the time.
        say: Told of what changes, one sentence each.
    """

    def __init__(
        self,
        following: Following,
        connect: Callable[[], Awaitable[Bus]],
        orders: OrderFolder,
        server: Erases,
        *,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._following = following
        self._connect = connect
        self._orders = orders
        self._server = server
        self._clock = clock
        self._say = say
        self._bus: Bus | None = None
        self._switch: Switch | None = None
        self._subscriptions: list[Subscription] = []
        self._pool: int | None = None
        self._pool_told = False
        self._off = False
        self._heard_at = clock.monotonic()
        self._bounds = Bounds()
        self._knows_erasures = self._untold = False
        self._erasures: dict[str, str] = {}
        self._pending: OrderedDict[str, str] = OrderedDict()
        self._erased: OrderedDict[str, ErasedHistories] = OrderedDict()
        self._said: dict[str, str] = {}
        self._woken = asyncio.Event()
        self._news = asyncio.Event()
        orders.bound(self._bounds)
        orders.erased(None)

    @property
    def ceiling(self) -> Ceiling:
        """How deep drafts may be now."""
        return self._bounds.ceiling

    async def hear(self, seconds: float) -> bool:
        """Waits until everything was heard once; False where the broker was silent for so long.

        Models that are loaded afterwards begin with what was heard. Without it they read nothing that was saved.
        """
        deadline = self._clock.monotonic() + seconds
        while not await self._follow():
            if self._clock.monotonic() >= deadline:
                self._say(
                    f"the broker was not heard for {seconds:g} s: drafts are as deep as the profile allows, and saved "
                    "histories are not read, as nobody knows which are erased"
                )
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    async def run(self) -> None:
        """Follows, erases and reports, for ever. The models have to be loaded."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_following())
            tasks.create_task(self._keep_erasing())
            tasks.create_task(self._keep_reporting())

    async def close(self) -> None:
        """Follows no more, and takes the server off the list of those that live."""
        if self._bus is None:
            return
        with contextlib.suppress(ForerunError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._bus.kv(SERVERS).delete(self._following.name)
        await self._unfollow()

    # ---------------------------------------------------------------- following

    async def _keep_following(self) -> None:
        while True:
            if self.ceiling.source is CeilingSource.UNHEARD:
                await self._unfollow()  # a broker that was started anew may have another address and password
            await self._follow()
            self._bound()
            await asyncio.sleep(LOOK_SECONDS)

    async def _follow(self) -> bool:
        """Connects and listens where that is not done yet; whether it is."""
        if self._bus is not None:
            return True
        try:
            self._bus = bus = await self._connect()
            # Until the whole of it is heard, what was heard before holds: a half would lift what is off.
            switch = Switch(bus, self._clock, self._bound)
            await switch.start()
            self._switch = switch
            await self._follow_pool(bus)
            self._subscriptions.append(await bus.kv(ERASURES).watch("", self._hear_erasure))
        except ForerunError as error:
            self._tell("broker", f"the broker is not followed yet: {error.message}")
            await self._unfollow()
            return False
        # Models hear of all of them before they read anything; of the latest they are asked what they took.
        for tenant in sorted(self._pending, key=self._pending.__getitem__)[: -limits.ERASURES_REPORTED]:
            del self._pending[tenant]
        self._said.pop("broker", None)
        self._knows_erasures = self._untold = True
        self._tell_erasures()
        self._bound()
        return True

    async def _follow_pool(self, bus: Bus) -> None:
        if not self._following.pool:
            return
        self._pool_told = False
        self._subscriptions.append(await bus.kv(CAPACITY).watch(self._following.pool, self._hear_capacity))
        if not self._pool_told:
            self._pool = None  # it was deleted while nobody heard it

    async def _unfollow(self) -> None:
        for one in self._subscriptions:
            await one.close()
        self._subscriptions.clear()
        if self._switch is not None:
            await self._switch.stop(CLOSE_SECONDS)
            self._switch = None
        if self._bus is not None:
            await self._bus.close(CLOSE_SECONDS)
            self._bus = None

    async def _hear_capacity(self, key: str, entry: Entry | None) -> None:
        if key != self._following.pool:
            return  # another pool, whose name begins with ours
        self._pool_told = True
        try:
            capacity = capacity_pb2.PoolCapacity.FromString(b"" if entry is None else entry.value)
        except DecodeError:
            self._say(f"the capacity of pool {key} cannot be read; what it said before holds")
            return
        self._pool = capacity.token_depth if capacity.HasField("token_depth") else None
        self._bound()

    async def _hear_erasure(self, tenant: str, entry: Entry | None) -> None:
        if entry is None:
            return  # nobody takes an erasure back
        try:
            erasure = erasure_of(entry.value)
        except (ValueError, KeyError, TypeError):
            self._say("an erasure cannot be read; all that is remembered of its tenant goes")
            erasure = f"revision {entry.revision}"
        if self._erasures.get(tenant) == erasure:
            return
        self._erasures[tenant] = self._pending[tenant] = erasure
        self._pending.move_to_end(tenant)
        self._untold = True
        if self._knows_erasures:
            self._tell_erasures()
            self._woken.set()

    # ---------------------------------------------------------------- handing on

    def _bound(self) -> None:
        now = self._clock.monotonic()
        if self._bus is not None and self._bus.connected:
            self._heard_at = now
        tenants = self._bounds.off
        if self._switch is not None:
            self._off, tenants = not self._switch.on_for_some, frozenset(self._switch.tenants_off)
        silent, bound = now - self._heard_at, self._following.silent_seconds
        bounds = Bounds(ceiling(self._pool, off=self._off, silent_seconds=silent, bound_seconds=bound), tenants)
        if bounds == self._bounds:
            return
        try:
            self._orders.bound(bounds)
        except OSError as error:
            self._tell("orders", f"the models cannot be told how deep drafts may be: {error}")
            return  # until the next look
        self._said.pop("orders", None)
        self._bounds = bounds
        obeyed = "" if self._following.obeys else "; the engine decides its depth itself and does not obey"
        self._say(f"{_sentence(bounds)}{obeyed}")
        self._news.set()

    async def _keep_erasing(self) -> None:
        """Beside following: a server that loads a model, which takes minutes, erases afterwards."""
        while True:
            if self._knows_erasures and self._tell_erasures():
                await self._erase()
            await _either(self._woken, LOOK_SECONDS)

    def _tell_erasures(self) -> bool:
        """Whether the models know all of them: also one that is started again, or only ends its texts."""
        try:
            if self._untold:
                self._orders.erased(self._erasures)
                self._untold = False
                self._said.pop("erasures", None)
        except OSError as error:
            self._tell("erasures", f"the models cannot be told whom to forget: {error}")
        return not self._untold

    async def _erase(self) -> None:
        """Erases what is to be erased; what does not work now is tried again at the next look."""
        for tenant, erasure in list(self._pending.items()):
            try:
                gone = await self._server.erase(tenant, erasure)
            except ForerunError as error:
                self._tell(f"tenant {tenant}", f"tenant {tenant} is not erased yet: {error.message}")
                return
            if self._pending.get(tenant) == erasure:
                del self._pending[tenant]
            self._said.pop(f"tenant {tenant}", None)
            self._remember(tenant, erasure, gone)

    def _remember(self, tenant: str, erasure: str, gone: Mapping[str, int]) -> None:
        erased = ErasedHistories(*(gone.get(name, 0) for name in ("histories", "tokens", "files")))
        self._erased[erasure] = erased
        if len(self._erased) > limits.ERASURES_REPORTED:
            self._erased.popitem(last=False)
        self._say(
            f"tenant {tenant} is erased: {erased.histories} histories of {erased.tokens} tokens, {erased.files} files"
        )
        self._news.set()

    # ---------------------------------------------------------------- telling

    async def _keep_reporting(self) -> None:
        while True:
            if self._bus is not None:
                try:
                    await self._bus.kv(SERVERS).put(self._following.name, self._report().content())
                    self._said.pop("report", None)
                except ForerunError as error:
                    self._tell("report", f"the server cannot report: {error.message}")
            await _either(self._news, REPORT_SECONDS)

    def _report(self) -> ServerReport:
        now = self._bounds.ceiling
        return ServerReport(
            name=self._following.name,
            profile=self._following.profile,
            depth=now.depth if self._following.obeys else None,
            source=now.source.value if self._following.obeys else "engine",
            erased=dict(self._erased),
        )

    def _tell(self, what: str, sentence: str) -> None:
        """Says something that is found again and again once, until it is over."""
        if self._said.get(what) != sentence:
            self._said[what] = sentence
            self._say(sentence)


def _sentence(bounds: Bounds) -> str:
    depth = bounds.ceiling.depth
    what = "as deep as the profile allows" if depth is None else f"at most {depth} tokens a pass"
    tenants = f", none for tenants {', '.join(sorted(bounds.off))}" if bounds.off else ""
    return f"drafts are {what} ({bounds.ceiling.source}){tenants}"


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Waits until something happens, or for so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()
