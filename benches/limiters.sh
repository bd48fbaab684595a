#!/bin/sh
# Measure each limiter beside its floor: a function that makes the same redis calls and replies five constants, called with
# the same arguments. Every figure is calls a second of redis-benchmark at pipeline 16; limiter and floor alternate in
# each round, and the medians of the rounds and of their ratios are printed. Takes two minutes. ROUNDS=n, CALLS=n.
set -eu
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-5}
calls=${CALLS:-200000}
home=$(mktemp -d)
redis-server --port 0 --unixsocket "$home/redis.sock" --save '' --dir "$home" --logfile redis.log & server=$!
trap 'kill $server; wait $server || true; rm -rf "$home"' EXIT

cli() { redis-cli -s "$home/redis.sock" "$@"; }
until cli PING >/dev/null 2>&1; do kill -0 $server; sleep 0.05; done
cat src/store/functions/*.lua | cli -x FUNCTION LOAD >/dev/null
cli -x FUNCTION LOAD <benches/floor.lua >/dev/null

# rate KEY FUNCTION ARGS: calls a second.
rate() {
    key=$1 function=$2
    shift 2
    redis-benchmark -s "$home/redis.sock" -P 16 -n "$calls" -r 1000 --csv FCALL "$function" 1 "$key" "$@" |
        awk -F '","' 'END { print $2 }'
}

# pair NAME WHAT KEY FLOOR ARGS: one line of figures for the table.
pair() {
    row="$1 $2" mine=drip_$1 at=$3 beside=floor_$4
    shift 4
    echo "$row $(rate "$at" "$mine" "$@") $(rate "floor:$at" "$beside" "$@")" >>"$home/figures"
}

for _ in $(seq "$rounds"); do
    cli FLUSHALL >/dev/null
    for limiter in "fixed_window string 1000000 3600000" "sliding_window window 10000 3600000" \
        "sliding_counter string 1000000 3600000" "token_bucket string 1000000 1 3600000" \
        "leaky_meter string 1000000 1 3600000" "throttle string 999999 1 3600"; do
        # shellcheck disable=SC2086 # the words are the arguments
        set -- $limiter
        name=$1 floor=$2
        shift 2
        pair "$name" admitted "a:$name:__rand_int__" "${floor}_admitted" "$@"
        shift
        case $name in throttle) full=0 ;; *) full=1 ;; esac
        cli FCALL "drip_$name" 1 "r:$name" $full "$@" >/dev/null
        if [ "$floor" = window ]; then cli ZADD "floor:r:$name" 1700000000000001 1 >/dev/null
        else cli SET "floor:r:$name" 123456789012345678901234567890123 >/dev/null; fi
        pair "$name" refused "r:$name" "${floor}_refused" $full "$@"
    done
done

awk -v rounds="$rounds" '
    function median(list, n, i, j, t) {
        for (i = 2; i <= n; i++) for (j = i; j > 1 && list[j] < list[j - 1]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
        return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
    }
    { row = $1 " " $2; if (!(row in n)) order[++rows] = row
      n[row]++; mine[row, n[row]] = $3; floor[row, n[row]] = $4; ratio[row, n[row]] = $3 / $4 }
    END {
        printf "%-16s %-9s %10s %10s %6s\n", "limiter", "", "calls/s", "floor/s", "ratio"
        for (r = 1; r <= rows; r++) {
            split(order[r], name, " ")
            for (i = 1; i <= n[order[r]]; i++) { a[i] = mine[order[r], i]; b[i] = floor[order[r], i]; c[i] = ratio[order[r], i] }
            printf "%-16s %-9s %10d %10d %6.2f\n", name[1], name[2], median(a, i - 1), median(b, i - 1), median(c, i - 1)
        }
    }' "$home/figures"
