#!/bin/sh
# Install a tool of cargo's, unless it is there: tool.sh NAME. It comes from the package registry and is compiled, which takes
# some minutes, once.
set -eu
command -v "$1" >/dev/null && exit
echo "$1 is not here: installing it into ${CARGO_HOME:-$HOME/.cargo}/bin; this takes some minutes, once"
exec cargo install --locked --quiet "$1"
