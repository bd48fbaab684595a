#!/bin/sh
# Install what the tests of the dashboard need, where it is missing: Chromium, Node with npm. The tests fetch the packages that drive the
# browser themselves, into the target folder.
set -eu

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else echo "setup: '$*' needs root, and there is no sudo: run it as root" >&2; exit 1
    fi
}

missing=""
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing="chromium"
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here: install $missing by hand; until then the tests of the dashboard are ignored" >&2
    exit 0
fi
as_root apt-get update -qq || true # a broken third-party source need not matter
# shellcheck disable=SC2086 # the names are words of their own
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
