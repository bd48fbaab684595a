#!/bin/bash
# Do the packages do what packages do? Stages what `make deb` and `make dist` built, with a second version of the first, and
# runs cases.sh under a real systemd in a throw-away root (tests/systemd/boot.sh). Nothing stays on this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."

for tool in dpkg cargo-deb; do
  command -v $tool > /dev/null || { echo "SKIPPED: the packages cannot be tested here: there is no $tool"; exit 0; }
done
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT

debs=(target/debian/dripd_*_"$(dpkg --print-architecture)".deb) # beside it may be that for arm64
[ ${#debs[@]} = 1 ] || { echo "one package is expected in target/debian: ${debs[*]}" >&2; exit 1; }
cp "${debs[0]}" "$files/one.deb"
cargo deb --quiet --no-build --locked --deb-revision 2 --output "$files/two.deb" > /dev/null
cp "$files/one.deb" "${debs[0]}" # cargo deb empties the directory, wherever the output goes
cp target/dist/dripd-*.tar.gz{,.sha256} "$files"
# What `make install` takes, and nothing else: no cargo, no sources.
tar -cf "$files/tree.tar" Makefile config.toml systemd docs/config.schema.json target/release/dripd target/share

status=0
LIMIT=240 bash tests/systemd/boot.sh tests/packages/cases.sh "$files" || status=$?
[ $status = 77 ] && status=0
exit $status
