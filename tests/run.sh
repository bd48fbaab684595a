#!/bin/sh
# Run every test, or those that the arguments choose as they do of `cargo test`, and end with what was left out and why.
#
# A test that lacks something is reported as ignored among a thousand others. So the block at the end names each, with what brings it; below
# it the tests of all programs are counted in one line. The exit code is that of `cargo test`.
set -u
cd "$(dirname "$0")/.." || exit
mkdir -p target
# Most tests wait for a server, a clock or a browser: more of them at once than there are cores.
: "${RUST_TEST_THREADS:=$(($(nproc) * 2 + 1))}"
export RUST_TEST_THREADS
rm -f target/tests.rc
# All programs, whatever the first of them found: what they left out is told of all.
{ cargo test --no-fail-fast "$@" 2>&1; echo $? > target/tests.rc; } | tee target/tests.log
sh tests/skipped.sh target/tests.log
exit "$(cat target/tests.rc)"
