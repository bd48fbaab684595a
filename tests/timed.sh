#!/bin/sh
# Run a program of tests so that it tells how long each test took: timed.sh PROGRAM [ARGUMENT ...]. Cargo runs the programs through it.
#
# The usual harness tells that only where it may use what is unstable, which it asks of this variable when it runs. (Nothing is compiled
# with it.) The harness of tests/tools tells it by itself.
case $1 in
  */deps/tools-*) exec "$@" ;;
  *) exec env RUSTC_BOOTSTRAP=1 "$@" -Zunstable-options --report-time ;;
esac
