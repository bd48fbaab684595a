#!/bin/bash
# Is the image what the Dockerfile says, and does a daemon live in it? tests/container/run.sh BINARY
#
# BINARY is a static dripd. The images that the Dockerfile begins with come from a registry, which is not asked: its first
# stage is a root with busybox, in which `cargo build` gives that binary. All that comes behind it is built as it stands, by
# buildah, and run as the first process of namespaces of its own, on a root that cannot be written.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# = 1 ] || { echo "usage: $0 BINARY" >&2; exit 2; }

[ "$(id -u)" = 0 ] || { echo "SKIPPED: an image is built here by root only"; exit 77; }
for tool in buildah busybox redis-server redis-cli curl; do
  command -v $tool > /dev/null || { echo "SKIPPED: there is no $tool: apt-get install buildah busybox-static redis-server"; exit 77; }
done
if LC_ALL=C ldd "$1" 2> /dev/null | grep -q '=>'; then echo "FAILED: $1 is not static" >&2; exit 1; fi

work=$(mktemp -d)
store=(--storage-driver vfs --root "$work/store" --runroot "$work/run")
pids=()
cleanup() {
  local pid
  for pid in "${pids[@]}"; do pkill -KILL -P "$pid" || true; kill -KILL "$pid" 2> /dev/null || true; done
  umount -R "$work/root" 2> /dev/null || true
  buildah "${store[@]}" rm -a > /dev/null 2>&1 || true
  rm -rf "$work"
}
trap cleanup EXIT
fail() { echo "FAILED: $*" >&2; sed 's/^/    /' "$work/log" >&2 2> /dev/null || true; exit 1; }
eventually() { # WHAT COMMAND...
  local what=$1 tries
  shift
  for tries in {1..200}; do "$@" > /dev/null 2>&1 && return; sleep 0.05; done
  fail "$what: not within 10 s"
}

# --- the image ---

mkdir -p "$work/stage"/{bin,etc/ssl/certs,tmp} "$work/context"
cp "$(command -v busybox)" "$work/stage/bin/busybox"
for name in sh mkdir cp; do ln -s busybox "$work/stage/bin/$name"; done
cp "$1" "$work/stage/bin/built"
printf '#!/bin/sh\ntrue\n' | tee "$work/stage/bin/apk" > "$work/stage/bin/strip"
printf '#!/bin/sh\nmkdir -p target/release && cp /bin/built target/release/dripd\n' > "$work/stage/bin/cargo"
chmod 755 "$work/stage/bin"/{apk,strip,cargo}
cp /etc/ssl/certs/ca-certificates.crt "$work/stage/etc/ssl/certs/" 2> /dev/null || echo none > "$work/stage/etc/ssl/certs/ca-certificates.crt"
printf 'FROM scratch\nCOPY . /\nENV PATH=/bin\n' > "$work/Dockerfile"
base=$(sed -n 's/^FROM \(.*\) AS build$/\1/p' Dockerfile)
buildah "${store[@]}" build -q --isolation chroot -f "$work/Dockerfile" -t "docker.io/library/$base" "$work/stage" > /dev/null
# What git has: that is what a clone builds from.
git archive HEAD Cargo.toml Cargo.lock README.md src benches/bench | tar -x -C "$work/context"
buildah "${store[@]}" build -q --isolation chroot --pull-never -f Dockerfile -t dripd "$work/context" > /dev/null 2> "$work/log" || fail "the image is not built"

inspect() { buildah "${store[@]}" inspect --type image --format "$1" dripd; }
[ "$(inspect '{{.OCIv1.Config.User}}')" = 65532:65532 ] || fail "it runs as $(inspect '{{.OCIv1.Config.User}}')"
[ "$(inspect '{{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}}')" = "[/bin/dripd] [run]" ] || fail "it starts $(inspect '{{.OCIv1.Config.Entrypoint}}')"
echo "ok not root, and starts a daemon"
container=$(buildah "${store[@]}" from --pull-never dripd)
image=$(buildah "${store[@]}" mount "$container")
size=$(du -sb "$image" | cut -f 1)
[ "$size" -lt 30000000 ] || fail "it has $size bytes"
echo "ok $((size / 1000000)) MB, below 30"
files=$(cd "$image" && find . -type f | sort | tr '\n' ' ')
[ "$files" = "./bin/dripd ./etc/ssl/certs/ca-certificates.crt " ] || fail "it holds $files"
echo "ok no shell, and no file that is not named"

# --- a daemon in it ---

mkdir "$work/root" "$image/dev" # what runs images makes the latter

port=$((20000 + RANDOM % 10000))
redis-server --port $port --save '' --dir "$work" > /dev/null & pids+=($!)
eventually "Redis" redis-cli -p $port ping
http=$((port + 1))
# Namespaces of processes, mounts, host names and IPC; the network is that of this machine. The root is read-only, but for /tmp.
# The shell that calls it becomes the process outside of them.
contained() { # COMMAND...
  exec env -i DRIPD_REDIS_URL="redis://127.0.0.1:$port" DRIPD_HTTP_LISTEN="127.0.0.1:$http" PATH=/bin:/usr/bin:/usr/sbin:/sbin \
    unshare --pid --fork --kill-child --mount --uts --ipc -- sh -c '
      image=$1 root=$2 && shift 2 && mount --make-rprivate / && mount --bind "$image" "$root" &&
      mount -o remount,bind,ro "$root" && mount -t tmpfs tmpfs "$root/dev" && touch "$root/dev/null" &&
      mount --bind /dev/null "$root/dev/null" && mount -t tmpfs -o mode=1777 tmpfs "$root/tmp" &&
      exec chroot --userspec=65532:65532 --groups= "$root" "$@"' sh "$image" "$work/root" "$@"
}

contained /bin/dripd run --log-format json 2> "$work/log" & pids+=($!)
started=$!
eventually "it serves" curl -fs "http://127.0.0.1:$http/readyz"
first=$(pgrep -P "$started")
[ "$(sed -n 's/^NSpid:.*\t//p' "/proc/$first/status")" = 1 ] || fail "dripd is not the first process"
[ "$(sed -n 's/^Uid:\t\([0-9]*\).*/\1/p' "/proc/$first/status")" = 65532 ] || fail "dripd runs as another user"
echo "ok the first process, not root, on a root that cannot be written"
redis-cli -p $port lpush drip:queue:acme hello > /dev/null
eventually "a job is ready" sh -c "redis-cli -p $port xrange drip:ready - + | grep -qx hello"
(contained /bin/dripd status acme) | grep -q acme || fail "status knows nothing of acme"
echo "ok a job drips out"
(contained /bin/dripd healthcheck --ready) | grep -qx ok || fail "its health check fails"
kill -STOP "$first"
(contained /bin/dripd healthcheck) 2> /dev/null && fail "a daemon that hangs is called well"
kill -CONT "$first"
echo "ok its health check sees a daemon that hangs"
since=$(date +%s%N)
kill -TERM "$first"
wait "$started" || fail "it ends with $? on TERM"
took=$((($(date +%s%N) - since) / 1000000))
[ "$took" -lt 5000 ] || fail "it ends $took ms after TERM"
echo "ok ends on TERM, with 0, within 5 s"
[ "$(wc -l < "$work/log")" -gt 2 ] || fail "it logs nothing"
grep -v '^{"timestamp":".*"level":".*}$' "$work/log" && fail "a line of its log is no JSON"
echo "ok logs lines of JSON"
