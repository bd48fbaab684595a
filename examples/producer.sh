#!/bin/sh
# Put jobs into a bucket with a plain LPUSH, and say what became of them: producer.sh BUCKET JOB...
set -eu
[ $# -ge 2 ] || { echo "usage: $0 BUCKET JOB..." >&2; exit 2; }

cli=$(command -v redis-cli || command -v valkey-cli) || { echo 'no redis-cli and no valkey-cli on the PATH' >&2; exit 1; }
redis() { "$cli" -e --raw -u "${REDIS_URL:-redis://127.0.0.1:7379}" "$@"; }

queue=drip:queue:$1
shift

# Asked before the push, so that a Redis without dripd is refused with nothing pushed.
peek=$(redis FCALL_RO drip_peek 1 "$queue")
capacity=$(echo "$peek" | sed -n 3p)
length=$(redis LPUSH "$queue" "$@")

over=$((length > capacity ? length - capacity : 0))
rejected=$((over < $# ? over : $#))     # the newest of this push
echo "accepted $(($# - rejected)) rejected $rejected"
[ "$rejected" -eq 0 ] || exit 75        # EX_TEMPFAIL: try again later
