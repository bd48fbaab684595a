# syntax=docker/dockerfile:1
# A daemon, a worker or any other command of dripd in a container. It has no server of its own: name one, as compose.yaml does.
#
#   docker build -t dripd .
#   docker run --rm -e DRIPD_REDIS_URL=redis://valkey:6379 dripd run
#
# A configuration of your own goes to /etc/dripd/config.toml. Root is needed for nothing, and nothing is written: a read-only
# container will do.

FROM rust:1.95-slim-trixie AS build
WORKDIR /dripd
COPY Cargo.toml Cargo.lock README.md ./
COPY src src
COPY benches/bench benches/bench
RUN cargo build --release --locked --bin dripd && strip target/release/dripd

FROM debian:trixie-slim
# Certificates: `work --http` posts to https too.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /dripd/target/release/dripd /usr/local/bin/dripd
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["dripd"]
CMD ["run"]
