# The image of the node-agent and its data movers. `docker build -t longshore .`
FROM debian:12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
      tini ca-certificates nodejs npm libnode-dev python3 make g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY package.json package-lock.json .npmrc ./
RUN npm ci --no-audit --no-fund
COPY . .
RUN image/rootfs.sh /rootfs

FROM scratch
COPY --from=build /rootfs /
ENV PATH=/bin HOME=/scratch NODE_COMPILE_CACHE=/opt/longshore/cache SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532:65532
ENTRYPOINT ["/velero"]
CMD ["node-agent", "server"]
