# Models on NVIDIA Triton, kept answering: `forerun models serve PROFILE` (docs/serving.md).
# Built from the root of the repository, on a Triton image of your choice, by its digest:
# `docker build --file images/triton.Dockerfile --build-arg TRITON_IMAGE=REGISTRY/tritonserver:RELEASE@sha256:... .`
# Which one follows from the profile: with vLLM or TensorRT-LLM for engines, any with the Python backend for `toy`. It needs
# Python 3.11 or newer, which NVIDIA's have from 24.11 on.
ARG TRITON_IMAGE

FROM ${TRITON_IMAGE} AS build
ARG TRITON_IMAGE
USER root
RUN case "${TRITON_IMAGE}" in \
      *@sha256:*) ;; \
      *) echo "TRITON_IMAGE has to name a digest (…@sha256:…), not ${TRITON_IMAGE}" >&2; exit 1 ;; \
    esac \
    && python3 -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
# Where packages come from is the builder's business: an index by pip's own variables, or a folder of wheels.
ARG PIP_INDEX_URL PIP_NO_INDEX PIP_FIND_LINKS
WORKDIR /build
# The command has an environment of its own: engines keep the packages that they came with.
RUN python3 -m venv --without-pip /opt/forerun && python3 -m venv --without-pip tools
COPY requirements.lock scripts/locked.py ./
RUN python3 locked.py requirements.lock >runtime.lock \
    && python3 locked.py requirements.lock hatchling >build.lock \
    && python3 -m pip --quiet --python tools/bin/python install --require-hashes --requirement build.lock \
    && python3 -m pip --quiet --python /opt/forerun/bin/python install --no-compile --require-hashes --requirement runtime.lock
COPY pyproject.toml README.md LICENSE ./
COPY protos/gen protos/gen
COPY sdk/python/forerun sdk/python/forerun
COPY services services
COPY operators operators
COPY gpu-serving gpu-serving
RUN python3 -m pip --quiet --python tools/bin/python wheel --no-deps --no-index --no-build-isolation --wheel-dir dist . \
    && python3 -m pip --quiet --python /opt/forerun/bin/python install --no-compile --no-deps --no-index dist/*.whl \
    && /opt/forerun/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/forerun/lib
# What our own models import inside the server, and nothing else of ours.
RUN mkdir -p /opt/forerun-models/forerun/serving /opt/forerun-triton \
    && cp -r services/forerun/core /opt/forerun-models/forerun/core \
    && cp -r gpu-serving/forerun/serving/__init__.py gpu-serving/forerun/serving/backend /opt/forerun-models/forerun/serving/ \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/forerun-models \
    && printf '{"server": "%s", "backends": "%s", "caches": "%s", "python": "%s", "libraries": []}\n' \
         /opt/tritonserver/bin/tritonserver /opt/tritonserver/backends /opt/tritonserver/caches "$(dirname "$(command -v python3)")" \
         >/opt/forerun-triton/environment.json

FROM ${TRITON_IMAGE}
USER root
COPY --from=build /opt/forerun /opt/forerun
COPY --from=build /opt/forerun-models /opt/forerun-models
COPY --from=build /opt/forerun-triton /opt/forerun-triton
# The interpreter of the Python backend heeds no PYTHONPATH.
RUN echo /opt/forerun-models >"$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/forerun.pth" \
    && install -d -o 65532 -g 65532 /models
# Weights, and what engines compile, lie on a volume there; nothing else is written but /tmp and /dev/shm.
ENV HOME=/models \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Last, because it changes with each release and nothing else has to be made again for it.
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="forerun-serving" \
      org.opencontainers.image.description="Models of Forerun on NVIDIA Triton" \
      org.opencontainers.image.version="${VERSION}"
USER 65532:65532
WORKDIR /models
ENTRYPOINT ["/opt/forerun/bin/forerun"]
CMD ["models", "serve", "one-gpu", "--triton=/opt/forerun-triton"]
