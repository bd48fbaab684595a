#!/bin/sh
# Take jobs as they drip out of their buckets, run each, acknowledge it: worker.sh [NAME]
# A shell holds text: jobs with a NUL or an RS byte, the separator used here, want another language.
set -f                          # a job is data, never a pattern of file names
IFS=$(printf '\036')            # RS, between the fields of an entry
name=${1:-$(uname -n)} taken=0 stop=

cli=$(command -v redis-cli || command -v valkey-cli) || { echo 'no redis-cli and no valkey-cli on the PATH' >&2; exit 1; }
redis() { "$cli" -e --raw -d "$IFS" -u "${REDIS_URL:-redis://127.0.0.1:7379}" "$@"; }

# Your work goes here. Exit other than 0, and the job comes again later, through its bucket.
# A job may come twice: $3 is the same on every attempt, remember it to do the work once.
run() { printf '%s %s\n' "$1" "$2"; }

trap 'stop=yes' TERM            # the job in hand is finished first; an idle wait ends within 2 s
until [ "$stop" ] || [ "$taken" = "${MAX_JOBS:-}" ]; do
  reply=$(redis XREADGROUP GROUP workers "$name" COUNT 1 BLOCK 2000 STREAMS drip:ready '>') || [ "$stop" ] || exit
  [ "$reply" ] || continue
  taken=$((taken + 1))

  set -- $reply                 # drip:ready, the entry, then the name and the value of each field
  entry=$2 id=$2
  shift 2
  unset bucket job
  while [ $# -ge 2 ]; do
    case $1 in bucket) bucket=$2 ;; job) job=$2 ;; id) id=$2 ;; esac
    shift 2
  done

  if (run "${bucket?}" "${job?}" "$id"); then
    redis XACK drip:ready workers "$entry" >/dev/null || exit
  else
    redis FCALL drip_fail 1 drip:ready "$entry" REASON "exit status $?" >/dev/null || exit
  fi
done
