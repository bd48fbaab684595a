#!/bin/bash
# Cross-compile the Debian package for arm64, into target/debian. `make deb` has made all that is in it but the binary.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "arm64: $*" >&2; exit 1; }

target=aarch64-unknown-linux-gnu
export CARGO_TARGET_DIR=$PWD/target/arm64
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
[ -d "$(rustc --print target-libdir --target "$target")" ] || rustup target add "$target" ||
  fail "there is no standard library for $target, and rustup cannot bring it"
command -v aarch64-linux-gnu-gcc > /dev/null ||
  fail "there is no C compiler for it: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"

cargo build --release --locked --bin dripd --target "$target"
cargo deb --no-build --locked --target "$target" --output target/debian/

# It is tried where it can be.
if emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64); then
  "$emulator" -L /usr/aarch64-linux-gnu "target/arm64/$target/release/dripd" --version
else
  echo "SKIPPED: whether it runs: apt-get install qemu-user-static"
fi
