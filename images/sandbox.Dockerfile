# Where tools run: the sandbox service, and what commands of tools find beside it. It begins from the services' image, so
# that both hold the same release. Add what your tools call in an image of your own that begins from this one.
ARG SERVICES_IMAGE=forerun:0.1.0

FROM ${SERVICES_IMAGE}
# The volume of workspaces is mounted there. Nothing else can be written.
ENV FORERUN_SANDBOX_DATA_DIR=/var/lib/forerun \
    HOME=/tmp
# Last, because it changes with each release and nothing else has to be made again for it.
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="forerun-sandbox" \
      org.opencontainers.image.description="Runs tools of Forerun" \
      org.opencontainers.image.version="${VERSION}"
CMD ["sandbox"]
