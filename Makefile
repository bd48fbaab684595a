.DEFAULT_GOAL := help
.PHONY: help demo test quick check audit build share install uninstall deb deb-arm64 dist dist-arm64 release test-packages test-container test-servers setup bench bench-peers chaos explore mutants docs

# Where `install` puts things; DESTDIR stands before all of it, for those who make packages.
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR ?= $(SYSCONFDIR)/systemd/system
# What is installed: the binary, and what `build` makes with it.
BUILT ?= target/release
SHARE = target/share
MSRV = $(shell sed -n 's/^rust-version = "\([^"]*\)".*/\1/p' Cargo.toml)

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## show the main job: bursts in, a steady drip out (18 seconds)
	@cargo run --quiet --release -- demo

test: setup ## run every test on a real Redis (some minutes); ends with what was skipped and why
	@sh tests/run.sh

quick: setup ## run the tests whose name has TEST in it, with the Lua files as they are now and the Rust as it was compiled last
	@at=$$(ls -t target/debug/deps/all-*[!.]? 2>/dev/null | grep -v '\.d$$' | head -n 1); [ -n "$$at" ] || { cargo test --no-run --test all && exec $(MAKE) quick; }; \
	  DRIPD_LUA=src/store/functions $$at $(TEST)

chaos: setup ## make every fault some times under load, and judge what happened (some ten minutes); the table in target/chaos.md
	@mkdir -p target
	@{ cargo test --quiet --test all -- chaos::every_fault --ignored --nocapture; echo $$? > target/chaos.rc; } | tee target/chaos.md
	@sed -n 's/^| \(.*\) | SKIPPED: \(.*\) |$$/SKIPPED: \1: \2/p' target/chaos.md; exit $$(cat target/chaos.rc)

docs: ## make a site of the pages, with search, in target/book/site/html; needs mdbook and mdbook-linkcheck2, and compiles them
	@sh .ci/tool.sh mdbook
	@sh .ci/tool.sh mdbook-linkcheck2
	@sh docs/build.sh

explore: setup ## try every sequence of events over small worlds against the reference model, as deep as an hour reaches
	@DRIPD_EXPLORE=$${DRIPD_EXPLORE:-3600} cargo test --quiet --test all -- explore::every_sequence --nocapture

mutants: setup ## break forty rules one by one, and see that a test notices each (half an hour)
	@cargo test --quiet --test all -- mutants::each_broken explore::rules::every --ignored --nocapture

bench: setup ## measure speed and accuracy next to the theoretical limit (an hour); figures and plots in target/bench
	@mkdir -p target/bench
	@cargo bench --quiet --bench bench -- --json target/bench/figures.json --plots target/bench > target/bench/figures.md; \
	  code=$$?; cat target/bench/figures.md; exit $$code

bench-peers: setup ## run the same work on other tools (some five minutes; installs them below benches/peers)
	@sh benches/peers/setup.sh
	@mkdir -p target/bench
	@cargo bench --quiet --bench bench -- peers --json target/bench/peers.json --plots target/bench > target/bench/peers.md; \
	  code=$$?; cat target/bench/peers.md; exit $$code

check: ## formatting, clippy, docs, the oldest Rust, licences and sources of dependencies; warnings are errors
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps
	@if rustup toolchain list 2>/dev/null | grep -q '^$(MSRV)[.-]'; then \
	  set -x; cargo +$(MSRV) check --locked --target-dir target/msrv; \
	else echo "SKIPPED: Rust $(MSRV), the oldest that dripd promises to build with, is not installed: rustup toolchain install $(MSRV)"; fi
	@sh .ci/tool.sh cargo-deny && set -x && cargo deny check licenses bans sources

audit: ## known weaknesses of dependencies; needs the advisory database, which is fetched
	@sh .ci/tool.sh cargo-deny
	@if cargo deny fetch db > target/audit.log 2>&1; then set -x; cargo deny check --disable-fetch advisories; \
	else echo "SKIPPED: the advisory database cannot be reached, so nothing is known of weaknesses; see target/audit.log"; fi

build: ## build the release binary, the man pages and the completions
	cargo build --release --locked
	@$(MAKE) --no-print-directory share

# NOTICES is what the licences of the dependencies ask for where a binary is given away.
share:
	@mkdir -p $(SHARE)
	$(BUILT)/dripd man $(SHARE)/man
	@mkdir -p $(SHARE)/completions
	$(BUILT)/dripd completions bash > $(SHARE)/completions/dripd
	$(BUILT)/dripd completions zsh > $(SHARE)/completions/_dripd
	$(BUILT)/dripd completions fish > $(SHARE)/completions/dripd.fish
	@sh .ci/notices.sh $(TARGET) > $(SHARE)/NOTICES

# The unit runs programs from /usr and /opt only; any other place must be named. It sees no home directory at all.
install: ## install what `make build` made, with the unit and the configuration; as root, without cargo (DESTDIR, PREFIX)
	@[ -x $(BUILT)/dripd ] && [ -d $(SHARE)/man ] || { echo "there is nothing to install: run 'make build' first, as yourself" >&2; exit 1; }
	install -D -m 755 $(BUILT)/dripd $(DESTDIR)$(PREFIX)/bin/dripd
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man1 $(SHARE)/man/*.1
	install -D -m 644 $(SHARE)/completions/dripd $(DESTDIR)$(PREFIX)/share/bash-completion/completions/dripd
	install -D -m 644 $(SHARE)/completions/_dripd $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_dripd
	install -D -m 644 $(SHARE)/completions/dripd.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/dripd.fish
	install -D -m 644 $(SHARE)/NOTICES $(DESTDIR)$(PREFIX)/share/doc/dripd/NOTICES
	install -D -m 644 docs/config.schema.json $(DESTDIR)$(PREFIX)/share/doc/dripd/config.schema.json
	@[ -e $(DESTDIR)$(SYSCONFDIR)/dripd/config.toml ] || (set -x; install -D -m 644 config.toml $(DESTDIR)$(SYSCONFDIR)/dripd/config.toml; \
	  sed -i '1s|docs/|$(PREFIX)/share/doc/dripd/|' $(DESTDIR)$(SYSCONFDIR)/dripd/config.toml)
	@mkdir -p $(DESTDIR)$(UNITDIR)
ifneq ($(filter /home/% /root/% /run/user/%,$(PREFIX)/),)
	@echo "the unit is not installed: a service cannot run from $(PREFIX), a home directory"
else
	sed -e 's|/usr/local/bin/dripd|$(PREFIX)/bin/dripd|' $(if $(filter /usr/% /opt/%,$(PREFIX)/),,-e 's|^ExecPaths=.*|& -$(PREFIX)/bin|') \
	  systemd/dripd.service > $(DESTDIR)$(UNITDIR)/dripd.service
	@chmod 644 $(DESTDIR)$(UNITDIR)/dripd.service
	install -m 644 systemd/dripd.socket $(DESTDIR)$(UNITDIR)/dripd.socket
	@[ -n "$(DESTDIR)" ] || echo "next: systemctl daemon-reload && systemctl enable --now dripd"
endif

uninstall: ## remove what `make install` installed; the configuration and the data stay
	rm -f $(DESTDIR)$(PREFIX)/bin/dripd $(DESTDIR)$(UNITDIR)/dripd.service $(DESTDIR)$(UNITDIR)/dripd.socket
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/dripd.1 $(DESTDIR)$(PREFIX)/share/man/man1/dripd-*.1
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/dripd
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_dripd
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/dripd.fish
	rm -f $(DESTDIR)$(PREFIX)/share/doc/dripd/NOTICES $(DESTDIR)$(PREFIX)/share/doc/dripd/config.schema.json
	@[ ! -d $(DESTDIR)$(PREFIX)/share/doc/dripd ] || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/share/doc/dripd
	@echo "left: $(DESTDIR)$(SYSCONFDIR)/dripd and the data, /var/lib/dripd; a daemon that runs goes on: systemctl disable --now dripd"

deb: build ## build a Debian package, target/debian/*.deb
	@sh .ci/tool.sh cargo-deb
	sed -e 's|/usr/local/bin/dripd|/usr/bin/dripd|' systemd/dripd.service > $(SHARE)/dripd.service
	sed -e '1s|docs/|/usr/share/doc/dripd/|' config.toml > $(SHARE)/config.toml
	@printf 'dripd (%s-1) unstable; urgency=medium\n\n  * What users notice stands in changelog.gz.\n\n -- %s  %s\n' \
	  "$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)" "$$(sed -n 's/^maintainer = "\(.*\)".*/\1/p' Cargo.toml)" \
	  "$$(date -R -d "@$$(git log -1 --format=%ct 2>/dev/null || date +%s)")" > $(SHARE)/changelog.Debian
	cargo deb --no-build --locked

deb-arm64: deb ## the same for arm64, cross-compiled; needs gcc-aarch64-linux-gnu, and qemu-user-static to see it run
	@bash .ci/arm64.sh

dist: ## build a static binary in a tarball, with its checksum and a list of what is in it, target/dist
	@bash .ci/dist.sh

dist-arm64: dist ## the same for arm64, cross-compiled; needs gcc-aarch64-linux-gnu
	@bash .ci/dist.sh aarch64

release: ## all of a version, checked and tested, in target/release-files (an hour); VERSION=0.1.0 refuses any other one
	@bash .ci/release.sh check $(VERSION)
	$(MAKE) check audit test chaos test-packages
	@bash .ci/release.sh make $(VERSION)

test-packages: deb dist ## install, start, upgrade, remove and purge the packages under a real systemd in a throw-away root
	@bash tests/packages/run.sh

# A static binary, with the libc of this machine: what the Dockerfile builds has another one.
test-container: setup ## build the image with a static binary, and run a daemon in it; as root, with buildah
	RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked --bin dripd --target-dir target/static --target $$(uname -m)-unknown-linux-gnu
	@strip -o target/static/dripd target/static/$$(uname -m)-unknown-linux-gnu/release/dripd
	@bash tests/container/run.sh target/static/dripd || [ $$? = 77 ]

test-servers: ## run every test on Redis 7.0 and 8.0, Valkey 8.1 and 9, from Debian's packages (an hour)
	@bash tests/servers.sh

setup: ## install a Redis or Valkey server, if none of 7.0 or later is there
	@sh tests/setup.sh
