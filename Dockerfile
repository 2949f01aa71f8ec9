# The image of the node-agent and its data movers. `docker build -t longshore .`, or for both architectures
# `docker buildx build --platform linux/amd64,linux/arm64 -t REGISTRY/longshore .`, which compiles on this machine for the other.
# The base is named by its digest (of the index, for all architectures), so that nobody can put another one in its place.
FROM --platform=$BUILDPLATFORM debian:bookworm-20260824-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171 AS build
ARG TARGETARCH
# Debian's packages as they were when the base was made: its list of sources names that snapshot of the archive in comments.
# A snapshot gets older than its signature says.
RUN sed -i -e '/^URIs:/d' -e 's/^# http/URIs: http/' /etc/apt/sources.list.d/debian.sources \
    && echo 'Acquire::Check-Valid-Until "false";' >/etc/apt/apt.conf.d/99snapshot \
    && apt-get update && apt-get install -y --no-install-recommends \
      tini ca-certificates nodejs npm libnode-dev python3 make g++ \
    && case "$TARGETARCH" in \
      "$(dpkg --print-architecture)") ;; \
      arm64) apt-get install -y --no-install-recommends g++-aarch64-linux-gnu ;; \
      amd64) apt-get install -y --no-install-recommends g++-x86-64-linux-gnu ;; \
    esac && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY package.json package-lock.json .npmrc ./
# Of all install scripts only that of Node's package runs: it fetches Node, which rootfs.sh compares before it starts it.
RUN npm ci --ignore-scripts --no-audit --no-fund && npm rebuild node
COPY . .
RUN image/rootfs.sh /rootfs "$TARGETARCH"
RUN image/plugin.sh /plugin /rootfs "$TARGETARCH"

# The init container that copies the plugin into the plugins volume of Velero's server: `docker build --target plugin -t
# velero-plugin-longshore .`, then `velero plugin add REGISTRY/velero-plugin-longshore` (docs/with-velero.md).
FROM scratch AS plugin
COPY --from=build /plugin /
USER 65532:65532
ENTRYPOINT ["/plugins/velero-plugin-longshore"]
CMD ["install", "/target"]

FROM scratch
COPY --from=build /rootfs /
ENV PATH=/bin HOME=/scratch NODE_COMPILE_CACHE=/opt/longshore/cache SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532:65532
ENTRYPOINT ["/velero"]
CMD ["node-agent", "server"]
