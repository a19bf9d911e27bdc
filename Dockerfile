# The image is the binary and nothing else.
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
# Static, so that the last stage needs no C library.
ENV RUSTFLAGS="-C target-feature=+crt-static"
RUN cargo build --locked --release --target "$(uname -m)-unknown-linux-gnu" \
 && cp "target/$(uname -m)-unknown-linux-gnu/release/gce-metadata-proxy" /gce-metadata-proxy

FROM scratch
COPY --from=build /gce-metadata-proxy /gce-metadata-proxy
# A number, so that Kubernetes can tell that it is not root.
USER 65532:65532
ENTRYPOINT ["/gce-metadata-proxy"]
