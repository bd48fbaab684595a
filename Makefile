.DEFAULT_GOAL := help
.PHONY: help demo test check build install setup

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## show the main job: bursts in, a steady drip out (15 seconds)
	@cargo run --quiet --release -- demo

test: setup ## run every test on a real Redis (some minutes)
	cargo test

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
