#!/bin/sh
# Run every test, or those that the arguments choose as they do of `cargo test`, and end with what was left out and why, the slowest tests
# and the time of all.
#
# A test that lacks something is reported as ignored among a thousand others. So the summary names each, with what brings it; in its last
# line the tests of all programs are counted. The exit code is that of `cargo test`.
set -u
cd "$(dirname "$0")/.." || exit
mkdir -p target
# Most tests wait for a server, a clock or a browser: more of them at once than there are cores.
: "${RUST_TEST_THREADS:=$(($(nproc) * 3))}"
export RUST_TEST_THREADS
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export "CARGO_TARGET_${host}_RUNNER=sh $PWD/tests/timed.sh"
rm -f target/tests.rc
cargo test --no-run "$@" || exit
began=$(date +%s)
# All programs, whatever the first of them found: what they left out is told of all.
{ cargo test --no-fail-fast "$@" 2>&1; echo $? > target/tests.rc; } | tee target/tests.log
sh tests/summary.sh target/tests.log $(($(date +%s) - began))
exit "$(cat target/tests.rc)"
