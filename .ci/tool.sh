#!/bin/sh
# Install a tool of cargo's, unless it is there: tool.sh NAME. It comes from the package registry and is compiled, which takes
# some minutes, once. It is this version and no other: what releases are made with does not change by itself.
set -eu
command -v "$1" >/dev/null && exit
case $1 in
    cargo-cyclonedx) version=0.5.9 ;;
    cargo-deb) version=3.8.0 ;;
    cargo-deny) version=0.20.2 ;;
    mdbook) version=0.5.4 ;;
    mdbook-linkcheck2) version=0.11.0 ;;
    *) echo "tool.sh: no version of $1 is written down here" >&2; exit 1 ;;
esac
echo "$1 is not here: installing $version into ${CARGO_HOME:-$HOME/.cargo}/bin; this takes some minutes, once"
exec cargo install --locked --quiet "$1@$version"
