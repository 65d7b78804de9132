"""What one tenant's versioned state is: versions and lines, and the branches that are open on them.

Versions and lines come from the log and survive everything. Branches live in memory only, so a crash drops each of them
whole. Methods change the state completely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from forerun.core import limits
from forerun.runtime.errors import (
    Aborted,
    AlreadyExists,
    ErrorReason,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from forerun.snapshots.engine.history import Version
from forerun.snapshots.engine.nodes import Ref
from forerun.snapshots.engine.values import Inline, Stored, Value

_KEYS_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one tenant may hold. Each field is the setting of the same name.

    Attributes:
        branches_max: Open branches.
        branch_max_bytes: What one branch holds beyond its base.
        branches_max_bytes: What all open branches together hold in memory.
        branch_idle_seconds: A branch that nobody touched for so long is dropped.
        line_max_bytes: What the commits of one line may store.
        line_retention_seconds: A line without a commit for so long is let go, with its versions.
    """

    branches_max: int
    branch_max_bytes: int
    branches_max_bytes: int
    branch_idle_seconds: float
    line_max_bytes: int
    line_retention_seconds: float


@dataclass(slots=True)
class Branch:
    """An open branch.

    Attributes:
        id: Made by its opener.
        base: The version it was opened on; empty for the empty state.
        root: The tree of the base.
        changes: What was written since; None removes a key.
        held_bytes: Keys and values of `changes`, blobs with their whole size.
        memory_bytes: The part of it that is held in memory.
        touched_at: Monotonic seconds of the last use.
        committing: A commit of it is being stored, so that nothing may be written to it.
    """

    id: str
    base: str
    root: Ref | None
    touched_at: float
    changes: dict[str, Value | None] = field(default_factory=dict)
    held_bytes: int = 0
    memory_bytes: int = 0
    committing: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key is to be looked up: in the changes of a branch first, then in a tree."""

    changes: Mapping[str, Value | None]
    root: Ref | None


class State:
    """The state of one tenant.

    Args:
        bounds: What it may hold.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._versions: dict[str, Version] = {}
        self._heads: dict[str, Version] = {}
        self._committed: dict[str, Version] = {}
        self._line_bytes: dict[str, int] = {}
        self._branches: dict[str, Branch] = {}
        self._memory_bytes = 0

    # ------------------------------------------------------------ branches

    def fork(self, branch: str, version: str, now: float) -> str:
        """Opens a branch and returns its base; see `SnapshotService.Fork`."""
        _check_name("branch", branch)
        root = self.root_of(version)
        present = self._branches.get(branch)
        if branch in self._committed or (present is not None and present.base != version):
            raise AlreadyExists(
                ErrorReason.ALREADY_EXISTS,
                "the branch was committed already; take a new id"
                if branch in self._committed
                else "the branch exists on another version",
                metadata={"branch": branch},
            )
        if present is not None:
            present.touched_at = now
            return present.base
        if len(self._branches) >= self._bounds.branches_max:
            raise exhausted("open branches of the tenant", "branches_max", self._bounds.branches_max)
        self._branches[branch] = Branch(branch, version, root, now)
        return version

    def branch(self, branch: str, now: float) -> Branch:
        """An open branch, which counts as used.

        Raises:
            NotFound: it is not open (any more).
        """
        found = self._branches.get(branch)
        if found is None:
            what = "was committed" if branch in self._committed else "is not open"
            raise NotFound(ErrorReason.SNAPSHOT_NOT_FOUND, f"the branch {what}", metadata={"branch": branch})
        found.touched_at = now
        return found

    def write(self, branch: str, changes: Sequence[tuple[str, Value | None]], now: float) -> int:
        """Applies changes in order, all or none, and returns what the branch now holds beyond its base in bytes."""
        target = self.branch(branch, now)
        if target.committing:
            raise FailedPrecondition(
                ErrorReason.STATE_CONFLICT, "the branch is being committed", metadata={"branch": branch}
            )
        after = dict(changes)
        held, memory = target.held_bytes, target.memory_bytes
        for key, value in after.items():
            _check_key(key)
            if key in target.changes:
                held -= _held(key, target.changes[key])
                memory -= _memory(key, target.changes[key])
            held += _held(key, value)
            memory += _memory(key, value)
        if held > self._bounds.branch_max_bytes:
            raise exhausted("bytes of one branch", "branch_max_bytes", self._bounds.branch_max_bytes)
        in_all = self._memory_bytes + memory - target.memory_bytes
        if in_all > self._bounds.branches_max_bytes:
            raise exhausted("bytes of all open branches", "branches_max_bytes", self._bounds.branches_max_bytes)
        target.changes.update(after)
        target.held_bytes, target.memory_bytes, self._memory_bytes = held, memory, in_all
        return held

    def discard(self, branch: str) -> None:
        """Drops a branch; one that is not open is fine."""
        dropped = self._branches.pop(branch, None)
        if dropped is not None:
            self._memory_bytes -= dropped.memory_bytes

    def drop_idle(self, now: float) -> int:
        """Drops the branches that nobody used for long and returns how many."""
        longest = self._bounds.branch_idle_seconds
        idle = [b.id for b in self._branches.values() if now - b.touched_at >= longest and not b.committing]
        for branch in idle:
            self.discard(branch)
        return len(idle)

    # ------------------------------------------------------------ versions and lines

    def root_of(self, version: str) -> Ref | None:
        """The tree of a version; the empty version is the empty state.

        Raises:
            NotFound: no such version.
        """
        if not version:
            return None
        found = self._versions.get(version)
        if found is None:
            raise NotFound(ErrorReason.SNAPSHOT_NOT_FOUND, "no such version", metadata={"version": version})
        return found.root

    def head(self, line: str) -> str:
        """The head version of a line; empty where nothing was committed."""
        _check_name("line", line)
        found = self._heads.get(line)
        return "" if found is None else found.id

    def place(self, *, branch: str | None, version: str | None, now: float) -> Place:
        """Where a branch or a version is read."""
        if branch is not None:
            found = self.branch(branch, now)
            return Place(found.changes, found.root)
        return Place({}, self.root_of(version or ""))

    def committed(self, branch: str, line: str) -> Version | None:
        """The version that the commit of a branch made, if it was done.

        Raises:
            FailedPrecondition: it was committed to another line.
        """
        _check_name("line", line)
        done = self._committed.get(branch)
        if done is not None and done.line != line:
            raise FailedPrecondition(
                ErrorReason.STATE_CONFLICT,
                "the branch was committed to another line",
                metadata={"branch": branch, "line": done.line},
            )
        return done

    def moved_head(self, branch: Branch, line: str) -> str | None:
        """None where the line's head still is the branch's base; else the head that is there."""
        head = self.head(line)
        return None if head == branch.base else head

    def check_room(self, line: str, more_bytes: int) -> None:
        """Refuses a commit that would bring a line above its budget.

        Raises:
            ResourceExhausted: it would.
        """
        if self._line_bytes.get(line, 0) + more_bytes > self._bounds.line_max_bytes:
            raise exhausted("bytes stored by the commits of one line", "line_max_bytes", self._bounds.line_max_bytes)

    def adopt(self, version: Version) -> None:
        """Makes a version that is in the log the head of its line, and ends its branch. May be repeated."""
        if version.id in self._versions:
            return
        self._versions[version.id] = version
        self._heads[version.line] = version
        self._committed[version.branch] = version
        self._line_bytes[version.line] = self._line_bytes.get(version.line, 0) + version.added_bytes
        self.discard(version.branch)

    def conflict(self, branch: Branch, head: str, keys: Iterable[str]) -> Aborted:
        """The refusal of a commit whose line moved on. The same for either order of the two commits.

        Args:
            branch: The branch that came second.
            head: The head that is there.
            keys: Keys that both changed since the branch's base.
        """
        other = self._versions[head].branch if head else ""
        both = sorted({branch.id, other} - {""})
        named = sorted(keys)
        shown = ", ".join(repr(key) for key in named[:_KEYS_NAMED])
        what = f"; both changed {shown}" if named else "; they changed no key in common"
        return Aborted(
            ErrorReason.MERGE_CONFLICT,
            f"the line moved on since branch and head had the same base: {' and '.join(both)}{what}; "
            "fork again from the head",
            metadata={"branches": ",".join(both), "keys": ",".join(named[:_KEYS_NAMED]), "head": head},
        )

    # ------------------------------------------------------------ retention

    def outlived(self, now_seconds: float) -> list[Version]:
        """The versions of lines that were not committed to for long, in the order of the log."""
        oldest = now_seconds - self._bounds.line_retention_seconds
        lines = {line for line, head in self._heads.items() if head.at_seconds < oldest}
        return [version for version in self._versions.values() if version.line in lines]

    def remaining(self, without: Iterable[Version]) -> list[Version]:
        """All versions but some, in the order of the log."""
        gone = {version.id for version in without}
        return [version for version in self._versions.values() if version.id not in gone]

    def forget(self, versions: Iterable[Version]) -> None:
        """Lets versions go. Branches that are open on them keep their trees."""
        for version in versions:
            del self._versions[version.id]
            del self._committed[version.branch]
            self._heads.pop(version.line, None)
            self._line_bytes.pop(version.line, None)

    def live(self, without: Iterable[Version]) -> tuple[set[Ref], set[Stored]]:
        """The trees and contents that branches and all versions but some use."""
        roots = {version.root for version in self.remaining(without) if version.root is not None}
        contents: set[Stored] = set()
        for branch in self._branches.values():
            if branch.root is not None:
                roots.add(branch.root)
            contents.update(value for value in branch.changes.values() if isinstance(value, Stored))
        return roots, contents


def _held(key: str, value: Value | None) -> int:
    size = 0 if value is None else len(value.data) if isinstance(value, Inline) else value.size_bytes
    return len(key.encode()) + size


def _memory(key: str, value: Value | None) -> int:
    return len(key.encode()) + (len(value.data) if isinstance(value, Inline) else 0)


def _check_name(what: str, name: str) -> None:
    if not 0 < len(name) <= limits.NAME_CHARS:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"{what} must have 1 to {limits.NAME_CHARS} characters",
            metadata={"field": what},
        )


def _check_key(key: str) -> None:
    if not 0 < len(key) <= limits.RESOURCE_KEY_CHARS:
        raise InvalidArgument(
            ErrorReason.ARGUMENT_INVALID,
            f"a key must have 1 to {limits.RESOURCE_KEY_CHARS} characters",
            metadata={"field": "key"},
        )


def exhausted(what: str, setting: str, limit: int) -> ResourceExhausted:
    """The refusal of something that a setting forbids; names both."""
    return ResourceExhausted(
        ErrorReason.BUDGET_EXHAUSTED,
        f"the limit of {limit} {what} is reached; setting {setting}",
        metadata={"limit": str(limit), "setting": setting},
    )
