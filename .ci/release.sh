#!/bin/bash
# Make what a release consists of, in target/release-files: packages, a tarball, the crate, lists of what is in them (SBOM),
# the notes, and the checksums of all. `make release` has checked and tested before.
#
#   release.sh check VERSION    whether a release can be made: of this version, committed, in the changelog
#   release.sh make VERSION     makes it; without VERSION of the one in Cargo.toml
#
# Two runs of one commit give the same bytes with the same compiler, libc, cargo-deb and gzip; others give others.
set -euo pipefail
cd "$(dirname "$0")/.."
files=$PWD/target/release-files
fail() { echo "release: $*" >&2; exit 1; }

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ "${2:-$version}" = "$version" ] || fail "this is not version $2: Cargo.toml says $version"
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed; commit or stash them: git status"

# The notes: what the changelog says of this version.
notes=$(awk -v version="$version" '/^## /{ is_in = $2 == version; next } is_in' CHANGELOG.md | sed -e '/./,$!d')
[ -n "$notes" ] || fail "CHANGELOG.md has no section \"## $version\": write down what users notice"
[ "${1:-make}" = make ] || exit 0

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -rf "$files" target/debian target/package && mkdir -p "$files"
make -s deb-arm64 dist-arm64
cargo package --locked --quiet
cp target/debian/*.deb target/dist/*.tar.gz target/dist/*.cdx.json "target/package/dripd-$version.crate" "$files"
printf '%s\n' "$notes" > "$files/NOTES.md"
(cd "$files" && sha256sum -- * > SHA256SUMS)
cat "$files/SHA256SUMS"
