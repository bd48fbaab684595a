#!/bin/sh
# Install the peers that the bench compares with: the Node packages and the Python packages into this folder, and nginx by
# the system's packages if there is none. Needs Node 18 or later with npm, and Python 3.10 or later with its venv module.
# What is there already is left as it is, and no nginx service runs afterwards that did not run before.
set -eu
cd "$(dirname "$0")"

need() {
    command -v "$1" >/dev/null || { echo "setup: $1 is not on the PATH: install it first" >&2; exit 1; }
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else echo "setup: '$*' needs root, and there is no sudo: run it as root" >&2; exit 1
    fi
}

# The stamp is a copy of what was installed from: the same again is nothing to do.
node_packages() {
    stamp=node_modules/.installed
    if cmp -s package-lock.json "$stamp"; then return 0; fi
    npm ci --no-audit --no-fund --ignore-scripts
    cp package-lock.json "$stamp"
}

python_packages() {
    stamp=.venv/.installed
    if cmp -s requirements.txt "$stamp"; then return 0; fi
    python3 -m venv --clear .venv
    .venv/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt
    .venv/bin/pip check >/dev/null
    cp requirements.txt "$stamp"
}

# Debian starts what it installs unless a policy forbids it, and enables it for the next boot.
nginx_package() {
    if command -v nginx >/dev/null || [ -x /usr/sbin/nginx ]; then return 0; fi
    if ! command -v apt-get >/dev/null; then
        echo "setup: no nginx and no apt-get here: install nginx by hand" >&2
        exit 1
    fi
    policy=/usr/sbin/policy-rc.d
    as_root apt-get update -qq || true # a broken third-party source need not matter
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        trap 'as_root rm -f "$policy"' EXIT
        trap 'exit 130' HUP INT TERM # a shell ended by a signal may run no EXIT trap
    fi
    apt_install nginx-light || apt_install nginx
    if command -v systemctl >/dev/null; then as_root systemctl disable --quiet nginx.service 2>/dev/null || true; fi
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null
}

need node
need npm
need python3
node_packages
python_packages
nginx_package
