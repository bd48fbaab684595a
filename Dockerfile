# syntax=docker/dockerfile:1
# A daemon, a worker or any other command of dripd in a container: the static binary, the certificates that it trusts, and
# nothing else. It has no server of its own: name one, as compose.yaml does.
#
#   docker build -t dripd .
#   docker run --rm -e DRIPD_REDIS_URL=redis://valkey:6379 dripd run
#
# A configuration of your own goes to /etc/dripd/config.toml. Root is needed for nothing, and nothing is written outside of
# /tmp: a read-only container will do.

FROM rust:1.95-alpine AS build
# hadolint ignore=DL3018
RUN apk add --no-cache musl-dev ca-certificates
WORKDIR /dripd
COPY Cargo.toml Cargo.lock README.md ./
COPY src src
COPY benches/bench benches/bench
RUN cargo build --release --locked --bin dripd && strip target/release/dripd && mkdir /empty

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /dripd/target/release/dripd /bin/dripd
# The socket of `dripd reload`.
COPY --from=build --chown=65532:65532 /empty /tmp
ENV PATH=/bin
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["/bin/dripd"]
CMD ["run"]
