"""Images for the node are built by buildah, which keeps its containers mounted until they are removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.kubernetes import packages
from tests.cluster.kubernetes.errors import ClusterError
from tests.cluster.kubernetes.images import BASE_IMAGE, Image, base_image, buildah


@pytest.mark.timeout(1_200)
@pytest.mark.usefixtures("machine")
def test_a_build_that_fails_leaves_no_container(tmp_path: Path) -> None:
    packages.install()
    base_image()
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(f"FROM {BASE_IMAGE}\nRUN echo {tmp_path.name} && false\n")
    before = set(buildah("containers", "--quiet").split())
    with pytest.raises(ClusterError):
        Image("localhost/broken:1", dockerfile, tmp_path).build()
    assert set(buildah("containers", "--quiet").split()) <= before
