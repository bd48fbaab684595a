#!/bin/bash
# Build what those without a compiler download, in target/dist: a tarball, its checksum, and a list of what is in it (SBOM).
#
#   dist.sh            for this machine
#   dist.sh MACHINE    then for another one, such as aarch64: the pages and completions are those of this one's binary
#
# The binary is static, so that it runs on any Linux of its architecture, where the standard library for musl can be had
# (from rustup) and a C compiler for it (Debian: musl-tools). Where they cannot, it is a dynamic one, and its name says from
# which glibc on it runs. DIST_LIBC=gnu asks for that one. For another machine the C parts are compiled by Debian's cross
# compiler, and linked by Rust's own linker.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."

here=$(uname -m)
machine=${1:-$here}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
dist=$PWD/target/dist

can_build_static() {
  [ "${DIST_LIBC:-musl}" = musl ] || return 1
  local target=$machine-unknown-linux-musl
  [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target" || return 1
  if [ "$machine" != "$here" ]; then
    command -v "$machine-linux-gnu-gcc" > /dev/null || return 1
    local variable=${target//-/_}
    export "CC_$variable=$machine-linux-gnu-gcc" "CARGO_TARGET_${variable^^}_LINKER=rust-lld"
    return
  fi
  command -v musl-gcc > /dev/null && return
  [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq musl-tools > /dev/null
}

if can_build_static; then
  target=$machine-unknown-linux-musl
  libc=musl
elif [ "$machine" != "$here" ]; then
  echo "dist: no static binary for $machine: it needs $machine-linux-gnu-gcc, and rustup for the standard library" >&2; exit 1
else
  target=$machine-unknown-linux-gnu
  libc=glibc$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)
  echo "dist: not a static binary: it runs with ${libc/glibc/glibc } or later only" >&2
fi
name=dripd-$version-$machine-linux-$libc

sh .ci/tool.sh cargo-cyclonedx
# No path of the machine that builds it: neither in the binary nor, below, in the list.
export RUSTFLAGS="--remap-path-prefix=$PWD=/dripd --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
cargo build --release --locked --target "$target"
built=target/$target/release
if [ "$machine" != "$here" ]; then
  if emulator=$(command -v "qemu-$machine-static" || command -v "qemu-$machine"); then
    "$emulator" "$built/dripd" --version
  else
    echo "SKIPPED: whether it runs: apt-get install qemu-user-static"
  fi
fi

# The pages and completions come from the binary itself, or that of this machine, the places from `make install`.
own=$built
if [ "$machine" = "$here" ]; then rm -rf "$dist"; else own=target/$here-unknown-linux-musl/release; fi
mkdir -p "$dist/stage"
make -s share BUILT="$own" TARGET="$target"
make -s install BUILT="$built" DESTDIR="$dist/stage" PREFIX=/usr/local SYSCONFDIR=/usr/local/share/doc \
  UNITDIR=/usr/local/lib/systemd/system
mv "$dist/stage/usr/local" "$dist/$name"
rm -rf "$dist/stage"
install -m 644 -t "$dist/$name/share/doc/dripd" README.md CHANGELOG.md LICENSE-*
"$([ "$machine" = "$here" ] || echo "$machine-linux-gnu-")strip" "$dist/$name/bin/dripd"

# The list names what the binary is made of and the macros that wrote parts of it: no tools for tests or for the build.
cargo cyclonedx --quiet --format json --spec-version 1.5 --target "$target" --no-build-deps --override-filename sbom
sed "s|path+file://$PWD#|pkg:cargo/|g" sbom.json > "$dist/$name.cdx.json" && rm sbom.json
install -m 644 "$dist/$name.cdx.json" "$dist/$name/share/doc/dripd/sbom.cdx.json"

# Two runs of one commit give one tarball.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2> /dev/null || date +%s)}"
tar -C "$dist" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - "$name" |
  gzip -9n > "$dist/$name.tar.gz"
rm -rf "${dist:?}/$name"
(cd "$dist" && sha256sum "$name.tar.gz" > "$name.tar.gz.sha256")
ls -l "$dist"
