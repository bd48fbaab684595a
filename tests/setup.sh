#!/bin/sh
# Install a Redis or Valkey server of 7.0 or later, if there is none. Leaves no system service running or enabled that was
# not there before: dripd runs a server of its own.
set -eu

# The major version of a server program; 0 when it is none.
major() {
    version=$("$1" --version 2>/dev/null | sed -n 's/.* v=\([0-9]*\)\..*/\1/p')
    echo "${version:-0}"
}

found() {
    for program in valkey-server redis-server; do
        if command -v "$program" >/dev/null && [ "$(major "$program")" -ge 7 ]; then return 0; fi
    done
    return 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else echo "setup: '$*' needs root, and there is no sudo: run it as root" >&2; exit 1
    fi
}

# Debian and Ubuntu start what they install, unless a policy forbids it, and enable it for the next boot.
with_apt() {
    policy=/usr/sbin/policy-rc.d
    was_there=$(ls /lib/systemd/system/redis-server.service 2>/dev/null || true)
    as_root apt-get update -qq || true # a broken third-party source need not matter
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        trap 'as_root rm -f "$policy"' EXIT
        trap 'exit 130' HUP INT TERM # a shell ended by a signal may run no EXIT trap
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server >/dev/null
    if [ -z "$was_there" ] && command -v systemctl >/dev/null; then
        as_root systemctl disable --quiet redis-server.service 2>/dev/null || true
    fi
}

if found; then exit 0; fi
echo "setup: no redis or valkey server of 7.0 or later is here; installing one"
if command -v apt-get >/dev/null; then with_apt
elif command -v dnf >/dev/null; then as_root dnf install -y -q valkey || as_root dnf install -y -q redis
elif command -v apk >/dev/null; then as_root apk add --quiet redis
elif command -v brew >/dev/null; then brew install --quiet redis
else
    echo "setup: none of apt-get, dnf, apk and brew is here: install redis-server or valkey-server 7.0 or later by hand" >&2
    exit 1
fi
if found; then exit 0; fi
echo "setup: the server that this system's packages offer is older than 7.0: install a newer redis-server or" \
    "valkey-server by hand and put it on the PATH" >&2
exit 1
