.DEFAULT_GOAL := help
.PHONY: help demo test check build install setup bench bench-peers

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## show the main job: bursts in, a steady drip out (15 seconds)
	@cargo run --quiet --release -- demo

test: setup ## run every test on a real Redis (some minutes)
	cargo test

bench: setup ## measure speed and accuracy next to the theoretical limit (a quarter of an hour); figures and plots in target/bench
	@mkdir -p target/bench
	@cargo bench --quiet --bench bench -- --json target/bench/figures.json --plots target/bench > target/bench/figures.md
	@cat target/bench/figures.md

bench-peers: setup ## run the same work on other tools (some five minutes; installs them below benches/peers)
	@sh benches/peers/setup.sh
	@mkdir -p target/bench
	@cargo bench --quiet --bench bench -- peers --json target/bench/peers.json --plots target/bench > target/bench/peers.md
	@cat target/bench/peers.md

check: ## formatting, clippy and docs, warnings as errors
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps

build: ## build the release binary, target/release/dripd
	cargo build --release

install: build ## install the binary and the systemd unit (as root; DESTDIR and PREFIX are obeyed)
	install -D -m 755 target/release/dripd $(DESTDIR)$(or $(PREFIX),/usr/local)/bin/dripd
	install -D -m 644 systemd/dripd.service $(DESTDIR)/etc/systemd/system/dripd.service

setup: ## install a Redis or Valkey server, if none of 7.0 or later is there
	@sh tests/setup.sh
