# All services, the command line and the broker; the command picks one: `forerun orchestrator`, `nats-server`.
# Built from the root of the repository: `docker build --file images/services.Dockerfile .` The environment is made of
# what requirements.lock pins for running, checked by hash; nothing that builds or installs is left in the image.
# The base is pinned by digest of its index of architectures: another image of that tag is refused. Where images come from a
# mirror or a base of your own, say so by PYTHON_IMAGE; the tests do, with a Debian that they make themselves.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

FROM ${PYTHON_IMAGE} AS build
# Where packages come from is the builder's business: an index by pip's own variables, or a folder of wheels.
ARG PIP_INDEX_URL PIP_NO_INDEX PIP_FIND_LINKS
WORKDIR /build
RUN python3 -m venv tools && python3 -m venv --without-pip /opt/forerun
COPY requirements.lock scripts/locked.py ./
RUN python3 locked.py requirements.lock >runtime.lock \
    && python3 locked.py requirements.lock hatchling >build.lock \
    && tools/bin/pip --quiet install --require-hashes --requirement build.lock \
    && tools/bin/pip --quiet --python /opt/forerun/bin/python install --no-compile --require-hashes --requirement runtime.lock
COPY pyproject.toml README.md LICENSE ./
COPY protos/gen protos/gen
COPY sdk/python/forerun sdk/python/forerun
COPY services services
COPY operators operators
COPY scripts/sbom.py ./
# Byte code that is never checked against its source: the root of the container is read-only, and starts are faster.
RUN tools/bin/pip --quiet wheel --no-deps --no-index --no-build-isolation --wheel-dir dist . \
    && tools/bin/pip --quiet --python /opt/forerun/bin/python install --no-compile --no-deps --no-index dist/*.whl \
    && /opt/forerun/bin/python sbom.py >/opt/forerun/sbom.cdx.json \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/forerun/lib

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/forerun /opt/forerun
ENV PATH=/opt/forerun/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Last, because it changes with each release and nothing else has to be made again for it.
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="forerun" \
      org.opencontainers.image.description="Services of Forerun" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      dev.forerun.sbom="/opt/forerun/sbom.cdx.json"
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["forerun"]
CMD ["--help"]
