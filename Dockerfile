# Two images. The proxy: the binary and nothing else. With `--target redirect`, what keeps the redirect on a node: the same
# binary and nftables. deploy/README.md says how they are built, for which machines, and how to see that a binary is the
# one of a commit.
#
# The release of Rust, and that of the C compiler, are part of what makes the binary the same to the bit.
ARG RUST_IMAGE=docker.io/library/rust:1.95.0-slim-bookworm
ARG DEBIAN_IMAGE=docker.io/library/debian:bookworm-slim

FROM --platform=$BUILDPLATFORM ${RUST_IMAGE} AS build
# pip downloads the C compiler, whose checksum deploy/image/requirements.txt has.
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-pip \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
WORKDIR /build
COPY . .
# amd64 or arm64: the platform that is asked for, or this machine's.
ARG TARGETARCH
RUN deploy/image/build-binary "${TARGETARCH}" /out/gce-metadata-proxy

FROM ${DEBIAN_IMAGE} AS redirect
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends nftables \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gce-metadata-proxy-redirect" \
      org.opencontainers.image.description="Redirects pods to gce-metadata-proxy" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/gce-metadata-proxy /gce-metadata-proxy
ENTRYPOINT ["/gce-metadata-proxy"]

FROM scratch AS proxy
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gce-metadata-proxy" \
      org.opencontainers.image.description="A proxy in front of the Google Compute Engine metadata server for every Kubernetes node" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/gce-metadata-proxy /gce-metadata-proxy
# A number, so that Kubernetes can tell that it is not root. In a redirected pod this user's packets go round the redirect, so
# it is one that no application has: not 65532, which is nonroot in distroless images.
USER 61988:61988
ENTRYPOINT ["/gce-metadata-proxy"]
