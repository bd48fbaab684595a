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
export "CARGO_TARGET_${host}_RUNNER=sh tests/timed.sh"
rm -f target/tests.rc target/tools.rc
: > target/tools.log
cargo test --no-run "$@" || exit
began=$(date +%s)
if [ $# = 0 ]; then
  # tests/tools mostly waits for browsers, and for clients in other languages. So it runs beside the others, and is shown after them.
  trap 'kill 0' INT # a job of the background would go on
  echo 1 > target/tools.rc
  { cargo test --no-fail-fast --test tools > target/tools.log 2>&1; echo $? > target/tools.rc; } &
  set -- --lib --test all
fi
# All programs, whatever the first of them found: what they left out is told of all.
{ cargo test --no-fail-fast "$@" 2>&1; echo $? > target/tests.rc; } | tee target/tests.log
wait
tee -a target/tests.log < target/tools.log
sh tests/summary.sh target/tests.log $(($(date +%s) - began))
code=$(cat target/tests.rc)
[ "$code" != 0 ] || [ ! -e target/tools.rc ] || code=$(cat target/tools.rc)
exit "$code"
