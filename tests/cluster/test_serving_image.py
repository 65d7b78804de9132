"""The image of models, built without network on a base that is laid out as NVIDIA's are, and serving from within.

The base holds the real Triton of `make triton` where NVIDIA's images have theirs, with this machine's Python. So all of
images/triton.Dockerfile is tried, and the command as an ordinary user. Engines and GPUs are not.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from forerun.runtime.kserve import KServeClient
from forerun.serving.server import HOME, Installation, find_installation
from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.forerun_images import wheels
from tests.cluster.kubernetes.images import BASE_IMAGE, BUILDAH, base_image, build_options, buildah
from tests.cluster.kubernetes.places import REPOSITORY
from tests.integration.serving.conftest import Answer, generate
from tests.triton.test_serve import free_ports, words_of

BASE = "localhost/triton-base:test"
SERVING = "localhost/forerun-serving:test"

pytestmark = [
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(sys.base_prefix == "/usr", reason="a Python of its own is needed, which a base can be given"),
]


@pytest.fixture(scope="module")
def base(machine: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A base with Triton, by its digest."""
    subprocess.run([REPOSITORY / "scripts" / "triton" / "install"], check=True, timeout=900)
    base_image()
    context = tmp_path_factory.mktemp("base")
    lay_out(find_installation(REPOSITORY / HOME), context)
    buildah("build", *build_options({}, {}), f"--tag={BASE}", f"--file={context / 'Dockerfile'}", str(context))
    return f"localhost/triton-base@{buildah('images', '--format', '{{.Digest}}', BASE).strip()}"


def lay_out(triton: Installation, context: Path) -> None:
    server = context / "opt" / "tritonserver"
    for source, place in ((triton.server.parent, "bin"), (triton.backends, "backends"), (triton.caches, "caches")):
        shutil.copytree(source, server / place)
    shutil.copytree(triton.libraries[0], server / "libs")
    python, version = context / "usr" / "local", f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in (python / "bin", python / "lib"):
        folder.mkdir(parents=True)
    for program in Path(sys.base_prefix, "bin").glob("python3*"):
        shutil.copy(program, python / "bin", follow_symlinks=False)
    for library in Path(sysconfig.get_config_var("LIBDIR")).glob("libpython3*.so*"):
        shutil.copy(library, python / "lib", follow_symlinks=False)
    unneeded = shutil.ignore_patterns("site-packages", "test", "idlelib", "tkinter", "config-*", "__pycache__")
    shutil.copytree(Path(sys.base_prefix, "lib", version), python / "lib" / version, ignore=unneeded)
    packages = python / "lib" / version / "site-packages"
    models = triton.python.parent / "lib" / version / "site-packages"
    for name in ("numpy", "numpy.libs", "pip"):
        shutil.copytree(models / name, packages / name)
    (context / "Dockerfile").write_text(
        f"FROM {BASE_IMAGE}\nCOPY opt /opt\nCOPY usr/local /usr/local\n"
        "ENV LD_LIBRARY_PATH=/opt/tritonserver/libs:/usr/local/lib PATH=/usr/local/bin:/usr/bin:/bin\n"
    )


def build(base: str, tag: str) -> None:
    arguments = {"TRITON_IMAGE": base, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
    options = build_options(arguments, {wheels(): "/wheels"})
    dockerfile = REPOSITORY / "images" / "triton.Dockerfile"
    buildah("build", *options, f"--tag={tag}", f"--file={dockerfile}", str(REPOSITORY))


@contextmanager
def serving(image: str, log: Path, ports: list[int]) -> Iterator[None]:
    """`forerun models serve toy` in a container, as the image's user."""
    container = buildah("from", "--pull-never", image).strip()
    addresses = [f"--{name}-address=127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True)]
    command = ["/opt/forerun/bin/forerun", "models", "serve", "toy", "--triton=/opt/forerun-triton", *addresses]
    with log.open("wb") as output:
        run = [*BUILDAH, "run", "--isolation=chroot", "--user=65532:65532", container, "--", *command]
        process = subprocess.Popen(run, stdout=output, stderr=output)
    try:
        yield
    finally:
        for number, words in processes().items():
            if addresses[0] in words and words[0].startswith("/opt/forerun/bin/python"):
                os.kill(number, signal.SIGTERM)  # a container's runtime would; this isolation has none
        process.wait(timeout=60)
        buildah("rm", container)


NAMES = ("grpc", "http", "metrics", "health")


async def asked(address: str) -> Answer:
    client = KServeClient(address)
    try:
        return await generate(client, [1, 2, 3], {"max_tokens": 12, "ignore_end": True})
    finally:
        await client.close()


def test_the_image_serves_and_ends_when_it_is_told(base: str, tmp_path: Path) -> None:
    build(base, SERVING)
    ports, log = free_ports(4), tmp_path / "log"
    with serving(SERVING, log, ports):
        grpc, _, metrics, health = (f"127.0.0.1:{port}" for port in ports)
        deadline = time.monotonic() + 120
        while not is_ready(health):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        answer = asyncio.run(asked(grpc))
        assert (len(answer.tokens), answer.finish) == (12, "length")
        assert "forerun_decoding_queue_length" in httpx.get(f"http://{metrics}/metrics").text
    assert not is_ready(health)
    assert [words for words in processes().values() if f"--grpc-port={ports[0]}" in words] == []


def processes() -> dict[int, list[str]]:
    """The words of every command line, by process."""
    numbers = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
    return {number: words_of(number).split("\0") for number in numbers}


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_base_without_a_digest_is_refused(base: str) -> None:
    with pytest.raises(ClusterError, match="has to name a digest"):
        build(BASE, "localhost/forerun-serving:refused")
