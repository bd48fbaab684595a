#!/bin/sh
# Do the examples work, each with the stock client of its language? tests/examples.sh REDIS-URL WORK-DIR sh|python|node
#
# Expects one dripd on that Redis, nobody else at work there, and in its configuration `small:*` with capacity 3 and rate
# 1/h, everything else with room and a rate of 1000/s or so. The clients are installed into WORK-DIR unless they are there.
# Prints `ok` with the language, or `SKIPPED` with the reason; stops with `FAILED` and exit code 1 at the first thing that is wrong.
set -u
[ $# -eq 3 ] || { echo "usage: $0 REDIS-URL WORK-DIR sh|python|node" >&2; exit 2; }
export REDIS_URL="$1"
unset MAX_JOBS
examples=$(cd "$(dirname "$0")/../examples" && pwd) || exit
mkdir -p "$2" && work=$(cd "$2" && pwd) && rm -f "$work/errors" || exit

fail() { echo "FAILED: $language: $*" >&2; [ ! -s "$work/errors" ] || cat "$work/errors" >&2; exit 1; }
client=$(command -v redis-cli || command -v valkey-cli)
cli() { "$client" -e --raw -u "$REDIS_URL" "$@"; }
same() { cmp -s "$work/got" "$work/expected" || fail "$1: got $(od -c "$work/got"), expected $(od -c "$work/expected")"; }

# bounded COMMAND: never longer than 30 s; its own process id in the file `pid`, so that a signal can go to it alone.
bounded() { timeout -s KILL 30 sh -c 'echo $$ >"$0"; exec "$@"' "$work/pid" "$@" >"$work/got" 2>"$work/errors"; }

producer() {
  case $language in
    python) bounded "$work/venv/bin/python" "$examples/producer.py" "$@" ;;
    node) bounded node "$work/producer.mjs" "$@" ;; # a copy: node looks for packages beside the file that imports them
    sh) bounded sh "$examples/producer.sh" "$@" ;;
  esac
}

worker() {
  case $language in
    python) bounded "$work/venv/bin/python" "$examples/worker.py" "$@" ;;
    node) bounded node "$work/worker.mjs" "$@" ;;
    sh) bounded sh "$examples/worker.sh" "$@" ;;
  esac
}

# What is ready from before is none of the next worker's business.
drain() {
  while ready=$(cli XREADGROUP GROUP workers "$0" COUNT 1 STREAMS drip:ready '>') && [ "$ready" ]; do
    cli XACK drip:ready workers "$(echo "$ready" | sed -n 2p)" >/dev/null
  done
}

# push EXIT-CODE VERDICT [--atomic] BUCKET JOB...
push() {
  code=$1
  echo "$2" >"$work/expected"
  shift 2
  producer "$@"
  status=$?
  [ $status -eq "$code" ] || fail "the producer exited $status, expected $code"
  same "the producer's verdict"
}

# take COUNT: run a worker for so many jobs; it prints what is in `expected` and leaves nothing pending.
take() {
  (export MAX_JOBS="$1" && worker "$bucket") || fail "the worker exited $?"
  same 'the worker'
  pending=$(cli XPENDING drip:ready workers - + 1 "$bucket")
  [ -z "$pending" ] || fail "not acknowledged: $pending"
}

jobs_arrive_in_order_as_they_were_pushed() {
  set -- one 'two  words' '*' '' 'back\tslash "quoted"' 'two
lines' 'naïve' last
  push 0 "accepted $# rejected 0" "$bucket" "$@"
  for job in "$@"; do printf '%s %s\n' "$bucket" "$job"; done >"$work/expected"
  take $#
}

a_job_need_not_be_text() {
  case $language in sh) bytes='a\377b' ;; *) bytes='\000a\377b\000' ;; esac
  printf "$bytes" | cli -x LPUSH "drip:queue:$bucket" >/dev/null
  printf "%s $bytes\n" "$bucket" >"$work/expected"
  take 1
}

# The rate lets the first job out at once and then none for an hour.
the_newest_of_a_push_over_capacity_are_rejected() {
  push 75 'accepted 3 rejected 7' ${1:-} "$small" 1 2 3 4 5 6 7 8 9 10
  echo "$small 1" >"$work/expected"
  take 1
  left=$(cli LRANGE "drip:queue:$small" 0 -1 | paste -s -d ' ' -)
  [ "$left" = '3 2' ] || fail "the queue holds $left, expected 3 2"
}

what_was_rejected_can_be_read() {
  cli XREVRANGE drip:rejected + - COUNT 7 | awk 'NR % 7 == 3 || NR % 7 == 5' | paste -d ' ' - - | sort >"$work/got"
  printf "$small %s\n" 4 5 6 7 8 9 10 | sort >"$work/expected"
  same 'drip:rejected'
}

# An entry that is no job fails in every language, and dripd buries what is malformed.
a_job_that_fails_is_given_back() {
  dead=$(cli XLEN drip:dead)
  cli XADD drip:ready '*' nothing here >/dev/null
  : >"$work/expected"
  take 1
  [ "$(cli XLEN drip:dead)" -eq $((dead + 1)) ] || fail 'the failure was not reported'
}

# The signal comes while the worker waits; the job that ends the wait is done before it goes.
term_ends_a_worker_cleanly() {
  worker "$bucket" &
  waited=0
  until cli CLIENT LIST | grep -q cmd=xreadgroup; do
    waited=$((waited + 1))
    [ $waited -lt 100 ] || fail 'the worker does not read'
    sleep 0.1
  done
  kill -TERM "$(cat "$work/pid")"
  cli LPUSH "drip:queue:$bucket" 'the last' >/dev/null
  wait $! || fail "the worker exited $? on TERM"
  echo "$bucket the last" >"$work/expected"
  same 'the worker, on TERM'
}

check() {
  bucket=ex-$language-$$ small=small:$language-$$
  drain
  jobs_arrive_in_order_as_they_were_pushed
  a_job_need_not_be_text
  the_newest_of_a_push_over_capacity_are_rejected
  what_was_rejected_can_be_read
  a_job_that_fails_is_given_back
  term_ends_a_worker_cleanly
  if [ $language = python ]; then
    small=$small-atomic
    the_newest_of_a_push_over_capacity_are_rejected --atomic
  fi
  echo "ok $language"
}

language=$3
[ "$client" ] || { echo 'SKIPPED: neither redis-cli nor valkey-cli on the PATH'; exit 0; }
capacity=$(cli FCALL_RO drip_peek 1 "drip:queue:small:$$" | sed -n 3p)
[ "$capacity" = 3 ] || fail "the capacity of small:* at $REDIS_URL is '$capacity', expected 3"

case $language in
  sh) ;;
  python)
    command -v python3 >/dev/null || { echo 'SKIPPED: no python3 on the PATH'; exit 0; }
    [ -x "$work/venv/bin/pip" ] || python3 -m venv "$work/venv" >/dev/null || { echo 'SKIPPED: python3 makes no virtual environment'; exit 0; }
    "$work/venv/bin/python" -c 'import redis' 2>/dev/null || "$work/venv/bin/pip" install -q redis ||
      { echo 'SKIPPED: pip cannot install redis'; exit 0; }
    ;;
  node)
    command -v node >/dev/null && command -v npm >/dev/null || { echo 'SKIPPED: no node and npm on the PATH'; exit 0; }
    [ -d "$work/node_modules/redis" ] || npm install --silent --prefix "$work" redis >/dev/null ||
      { echo 'SKIPPED: npm cannot install redis'; exit 0; }
    cp "$examples"/*.mjs "$work" || exit
    ;;
  *) fail 'it is none of sh, python and node' ;;
esac
check
