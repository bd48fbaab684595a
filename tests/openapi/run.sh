#!/bin/sh
# Ask a running door what its own document says it may be asked, and what it must not be: run.sh WORK-DIR URL TOKEN. Schemathesis makes
# the requests; it is installed into WORK-DIR, unless it is there. Where it cannot be, this prints SKIPPED with the reason.
set -u
[ $# -eq 3 ] || { echo "usage: $0 WORK-DIR URL TOKEN" >&2; exit 2; }
mkdir -p "$1" && cd "$1" || exit
if ! venv/bin/st --version >/dev/null 2>&1; then
  command -v python3 >/dev/null || { echo 'SKIPPED: schemathesis: no python3 on the PATH'; exit 0; }
  python3 -m venv venv >/dev/null && venv/bin/pip install -q schemathesis >pip.log 2>&1 ||
    { echo "SKIPPED: schemathesis: pip cannot install it; see $PWD/pip.log"; exit 0; }
fi
# Every check but one (`positive_data_acceptance`): a document cannot say which budgets there are, what two keys of a policy may be together, or
# which value belongs to the key that a path names. Calls with a fault of Redis' are no part of it: the door is given a Redis that is well. What is
# asked is the same each time, so that a failure comes again.
# /v1/events has no end, and is no answer to wait for.
venv/bin/st run "$2/openapi.json" --url "$2" --header "Authorization: Bearer $3" --exclude-checks positive_data_acceptance \
  --exclude-path /v1/events \
  --phases examples,coverage,fuzzing --max-examples "${EXAMPLES:-8}" --generation-deterministic \
  --request-timeout 20 --continue-on-failure --no-color
