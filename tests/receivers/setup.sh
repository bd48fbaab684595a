#!/bin/sh
# Install what a receiver needs into WORK-DIR, unless it is there: setup.sh WORK-DIR python|node. Prints the language where it
# can be run, and `SKIPPED` with the reason where it cannot: the packages come from registries.
set -u
[ $# -eq 2 ] || { echo "usage: $0 WORK-DIR python|node" >&2; exit 2; }
receivers=$(cd "$(dirname "$0")" && pwd) || exit
language=$2
mkdir -p "$1" && cd "$1" || exit

python() {
  command -v python3 >/dev/null || { echo 'no python3 on the PATH'; return 1; }
  venv/bin/python -c 'import fastapi, uvicorn, standardwebhooks' 2>/dev/null && return
  python3 -m venv venv >/dev/null && venv/bin/pip install -q fastapi uvicorn standardwebhooks >pip.log 2>&1 ||
    { echo "pip cannot install fastapi, uvicorn, standardwebhooks; see $PWD/pip.log"; return 1; }
}

node() {
  command -v node >/dev/null && command -v npm >/dev/null || { echo 'no node and npm on the PATH'; return 1; }
  [ -d node_modules/express ] && [ -d node_modules/standardwebhooks ] ||
    npm install --silent express standardwebhooks >npm.log 2>&1 ||
    { echo "npm cannot install express, standardwebhooks; see $PWD/npm.log"; return 1; }
  cp "$receivers/express_app.mjs" . # node looks for packages beside the file that imports them
}

if why=$($language); then echo "$language"; else echo "SKIPPED: receivers in $language: $why"; fi
