"""The one table of streams, buckets, object stores and users.

The broker is set up from it (`ensure`), its configuration is rendered from it (topology_render.py), `MemoryBus` starts
with it, and docs/reference/topology.md is generated from it: `python -m forerun.runtime.topology` prints that page.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from forerun.runtime import subjects
from forerun.runtime.bus import MAX_MESSAGE_BYTES
from forerun.runtime.errors import Bug, ErrorReason

_MIB: Final = 1024 * 1024
_GIB: Final = 1024 * _MIB
_MINUTE: Final = 60.0
_DAY: Final = 24 * 60 * _MINUTE

CLUSTER_REPLICAS: Final = 3

# The broker records here, by itself and durably, that a message used up its deliveries although its workers died.
MAX_DELIVERIES_ADVISORIES: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"


class Retention(StrEnum):
    """When a stream lets go of a message."""

    LIMITS = "limits"
    """By age and size only: any number of consumers, and it can be read again."""
    WORK_QUEUE = "workqueue"
    """As soon as it was worked off."""


class Discard(StrEnum):
    """What gives when a stream has reached its size."""

    OLD = "old"
    """The oldest messages."""
    NEW = "new"
    """The append, with ResourceExhausted."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A durable stream. All are on disk; `replicated` ones have `CLUSTER_REPLICAS` copies in a cluster.

    Attributes:
        content: Its messages hold content of sessions. Then dead letters refer to them and never copy them.
    """

    name: str
    use: str
    subjects: tuple[str, ...]
    retention: Retention
    discard: Discard
    max_age_seconds: float
    max_bytes: int
    dedupe_window_seconds: float
    content: bool
    max_message_bytes: int = MAX_MESSAGE_BYTES
    replicated: bool = True


@dataclass(frozen=True, slots=True)
class Bucket:
    """A key-value bucket: one revision per key, read through the leader (direct get is off).

    Attributes:
        ttl_seconds: A key that was not written for so long disappears, and watchers hear of it. None: never.
    """

    name: str
    use: str
    max_bytes: int
    max_value_bytes: int
    ttl_seconds: float | None = None
    replicated: bool = True


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Content by digest, apart per tenant, in chunks."""

    name: str
    use: str
    max_bytes: int
    ttl_seconds: float | None = None
    replicated: bool = True


@dataclass(frozen=True, slots=True)
class User:
    """Who may connect, and what for. Everybody has an inbox prefix that nobody else may listen to.

    Attributes:
        appends: Streams it may append to.
        consumes: Streams it may read and consume; with that come the dead letters of its consumers.
        keys_read: Buckets it may read and watch.
        keys_write: Buckets it may also write.
        objects_read: Object stores it may read.
        objects_write: Object stores it may also write, delete from and erase a tenant from.
        notifies: Core subjects it may publish.
        hears: Core subjects and passing stream subjects it may listen to.
        admin: Everything, including the set-up of streams.
    """

    name: str
    use: str
    appends: tuple[str, ...] = ()
    consumes: tuple[str, ...] = ()
    keys_read: tuple[str, ...] = ()
    keys_write: tuple[str, ...] = ()
    objects_read: tuple[str, ...] = ()
    objects_write: tuple[str, ...] = ()
    notifies: tuple[str, ...] = ()
    hears: tuple[str, ...] = ()
    admin: bool = False

    @property
    def inbox_prefix(self) -> str:
        """Where answers to this user arrive."""
        return f"_INBOX_{self.name}"


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything the broker holds."""

    streams: tuple[Stream, ...]
    buckets: tuple[Bucket, ...]
    object_stores: tuple[ObjectStore, ...]
    users: tuple[User, ...]

    def stream(self, name: str) -> Stream:
        """The stream of this name. A name that is not in the table is a defect of the caller."""
        return _named(self.streams, name)

    def bucket(self, name: str) -> Bucket:
        """The bucket of this name."""
        return _named(self.buckets, name)

    def object_store(self, name: str) -> ObjectStore:
        """The object store of this name."""
        return _named(self.object_stores, name)

    def user(self, name: str) -> User:
        """The user of this name."""
        return _named(self.users, name)

    def stream_of(self, subject: str) -> Stream | None:
        """The stream that takes an exact subject, if any."""
        for row in self.streams:
            if any(subjects.matches(pattern, subject) for pattern in row.subjects):
                return row
        return None

    @property
    def max_bytes(self) -> int:
        """What everything together may take on one server's disk."""
        sizes = [row.max_bytes for row in self.streams]
        sizes += [row.max_bytes for row in self.buckets]
        sizes += [row.max_bytes for row in self.object_stores]
        return sum(sizes)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Row = TypeVar("_Row", bound=_Named)


def _named(rows: tuple[_Row, ...], name: str) -> _Row:
    for row in rows:
        if row.name == name:
            return row
    raise Bug(ErrorReason.INTERNAL, f"{name!r} is not in the topology")


class Declares(Protocol):
    """A bus whose user may set up the broker. Each method creates what is missing and updates what differs."""

    async def declare_stream(self, row: Stream, *, replicas: int) -> None:
        """Creates or updates a stream."""
        ...

    async def declare_bucket(self, row: Bucket, *, replicas: int) -> None:
        """Creates or updates a bucket."""
        ...

    async def declare_object_store(self, row: ObjectStore, *, replicas: int) -> None:
        """Creates or updates an object store."""
        ...


async def ensure(bus: Declares, topology: Topology | None = None, *, replicas: int = 1) -> None:
    """Makes the broker hold what the table says. Idempotent, and harmless beside a running platform.

    Args:
        bus: A connection of the admin user.
        topology: Another table than `TOPOLOGY`.
        replicas: Copies of replicated rows: 1 for a single server, `CLUSTER_REPLICAS` for a cluster.

    Raises:
        Unavailable: the broker does not answer, or has too few servers for `replicas`.
        FailedPrecondition: something of the same name exists and cannot be changed into what the table says.
    """
    table = topology or TOPOLOGY
    for stream in table.streams:
        await bus.declare_stream(stream, replicas=replicas if stream.replicated else 1)
    for bucket in table.buckets:
        await bus.declare_bucket(bucket, replicas=replicas if bucket.replicated else 1)
    for store in table.object_stores:
        await bus.declare_object_store(store, replicas=replicas if store.replicated else 1)


EVENTS: Final = "EVENTS"
LEDGER: Final = "LEDGER"
AUDITS: Final = "AUDITS"
DEADLETTER: Final = "DEADLETTER"

POLICIES: Final = "policies"
BUDGETS: Final = "budgets"
GENERATIONS: Final = "generations"
EPOCHS: Final = "epochs"
CALLSITES: Final = "callsites"
CONTROL: Final = "control"
WORKERS: Final = "workers"
CAPACITY: Final = "capacity"
ERASURES: Final = "erasures"
SERVERS: Final = "servers"

RESULTS: Final = "results"
MODELS: Final = "models"
SNAPSHOTS: Final = "snapshots"

_STREAMS: Final = (
    Stream(
        name=EVENTS,
        use="The journal of every session: truth for take-over; predictors, audits and training listen",
        subjects=(f"{subjects.PREFIX}.event.>",),
        retention=Retention.LIMITS,
        discard=Discard.OLD,
        max_age_seconds=30 * _DAY,
        max_bytes=8 * _GIB,
        # Appends carry the expected sequence, too, so the window only has to outlast the retries of one append.
        dedupe_window_seconds=2 * _MINUTE,
        content=True,
    ),
    Stream(
        name=LEDGER,
        use="Ledger lines: truth for money, waste and counters",
        subjects=(f"{subjects.PREFIX}.ledger.>",),
        retention=Retention.LIMITS,
        discard=Discard.OLD,
        max_age_seconds=90 * _DAY,
        max_bytes=4 * _GIB,
        # Lines wait in an outbox during an outage and are sent again afterwards.
        dedupe_window_seconds=10 * _MINUTE,
        content=False,
    ),
    Stream(
        name=AUDITS,
        use="Committed hits to be executed again and compared; each is taken by one verifier",
        subjects=(f"{subjects.PREFIX}.audit.>",),
        retention=Retention.WORK_QUEUE,
        discard=Discard.NEW,  # an audit that finds no room is not sampled; those that wait are kept
        max_age_seconds=1 * _DAY,
        max_bytes=256 * _MIB,
        dedupe_window_seconds=2 * _MINUTE,
        content=True,
    ),
    Stream(
        name=DEADLETTER,
        use="References to messages that a consumer could not process, with the reason; without their content",
        subjects=(f"{subjects.PREFIX}.deadletter.>", f"{MAX_DELIVERIES_ADVISORIES}.>"),
        retention=Retention.LIMITS,
        discard=Discard.OLD,
        max_age_seconds=30 * _DAY,
        max_bytes=64 * _MIB,
        dedupe_window_seconds=10 * _MINUTE,
        content=False,
    ),
)

_BUCKETS: Final = (
    Bucket(POLICIES, "Policies and tool servers, versioned", 64 * _MIB, 512 * 1024),
    Bucket(BUDGETS, "Budget blocks leased to replicas, with their expiry", 64 * _MIB, 64 * 1024),
    # The largest value is a tenant's index of resources that are not settled: UNSETTLED_BYTES.
    Bucket(GENERATIONS, "Generations of resources that sessions share", 512 * _MIB, 32 * 1024, ttl_seconds=30 * _DAY),
    Bucket(EPOCHS, "Owner and epoch of each session", 512 * _MIB, 4096, ttl_seconds=30 * _DAY),
    Bucket(CALLSITES, "Gain, and on or off with its reason, of each call site", 256 * _MIB, 64 * 1024),
    Bucket(CONTROL, "The kill switch, for everyone and per tenant", 4 * _MIB, 4096),
    Bucket(
        CAPACITY, "What was decided for each pool: replicas, slots for speculation, depth of drafts", 4 * _MIB, 4096
    ),
    # Nothing of it disappears: a model server that was away for a year erases what it saved before it reads it.
    Bucket(ERASURES, "The last erasure of each tenant's histories", 64 * _MIB, 4096),
    Bucket(SERVERS, "Model servers that live, and what they have erased", 16 * _MIB, 64 * 1024, ttl_seconds=30.0),
    Bucket(WORKERS, "Addresses and abilities of the workers that live", 16 * _MIB, 64 * 1024, ttl_seconds=30.0),
)

_OBJECT_STORES: Final = (
    ObjectStore(RESULTS, "Results above one message's size", 8 * _GIB, ttl_seconds=30 * _DAY),
    ObjectStore(MODELS, "State of predictors", 4 * _GIB),
    ObjectStore(SNAPSHOTS, "Blobs of snapshots", 8 * _GIB),
)

_CONTROL_SUBJECTS: Final = f"{subjects.PREFIX}.control.*"

_USERS: Final = (
    User(
        "orchestrator",
        "Owns sessions",
        appends=(EVENTS, LEDGER, AUDITS),
        consumes=(EVENTS, LEDGER),
        keys_read=(POLICIES, WORKERS, CAPACITY, SERVERS),
        # CONTROL and ERASURES, because clients switch speculation off, and erase tenants, through the orchestrator.
        keys_write=(BUDGETS, GENERATIONS, EPOCHS, CALLSITES, CONTROL, ERASURES),
        objects_write=(RESULTS,),
        notifies=(f"{subjects.PREFIX}.cancel.*", subjects.demands(), _CONTROL_SUBJECTS),
        hears=(f"{subjects.PREFIX}.candidates.*", subjects.loads(), _CONTROL_SUBJECTS),
    ),
    User(
        "predictor",
        "Learns from the journal, publishes candidates",
        consumes=(EVENTS,),
        keys_read=(POLICIES, CONTROL, CALLSITES),
        objects_read=(RESULTS,),
        objects_write=(MODELS,),
        notifies=(f"{subjects.PREFIX}.candidates.*",),
        hears=(f"{subjects.PREFIX}.event.>", _CONTROL_SUBJECTS),
    ),
    User(
        "verifier",
        "Audits committed hits",
        appends=(LEDGER,),
        consumes=(EVENTS, LEDGER, AUDITS),
        keys_read=(POLICIES, CONTROL, WORKERS, GENERATIONS),
        objects_read=(RESULTS,),
        hears=(subjects.loads(), _CONTROL_SUBJECTS),
    ),
    User(
        "snapshots",
        "Keeps versioned state",
        keys_read=(CONTROL,),
        keys_write=(GENERATIONS,),
        objects_write=(SNAPSHOTS, RESULTS),
        hears=(_CONTROL_SUBJECTS,),
    ),
    User(
        "sandbox",
        "Runs tools",
        keys_read=(POLICIES, CONTROL, CAPACITY),
        keys_write=(WORKERS,),
        objects_write=(RESULTS,),
        notifies=(subjects.loads(),),
        hears=(f"{subjects.PREFIX}.cancel.*", _CONTROL_SUBJECTS),
    ),
    User(
        "serving",
        "Serves models: how deep drafts may be, and whose histories are erased",
        keys_read=(CONTROL, CAPACITY, ERASURES),
        keys_write=(SERVERS,),
    ),
    User(
        "operator",
        "Publishes policies, sizes pools",
        keys_read=(CONTROL, WORKERS),
        keys_write=(POLICIES, CAPACITY),
        hears=(subjects.loads(), subjects.demands(), _CONTROL_SUBJECTS),
    ),
    User("admin", "The command line and the set-up of the broker", admin=True),
)

TOPOLOGY: Final = Topology(_STREAMS, _BUCKETS, _OBJECT_STORES, _USERS)


if __name__ == "__main__":
    import sys

    from forerun.runtime.topology_render import render_markdown

    sys.stdout.write(render_markdown(TOPOLOGY))
