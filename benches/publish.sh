#!/bin/sh
# Put what the last `make bench` and `make bench-peers` found into README.md and docs/, between the comments that name it there.
# Without figures of the peers what the pages say of them stays.
set -eu
cd "$(dirname "$0")/.."
own=target/bench/figures.md peers=target/bench/peers.md
[ -s "$own" ] || { echo "$own is missing: run make bench first" >&2; exit 1; }

# The tables are printed with wide columns; a page needs none.
narrow() { sed -E 's/ +/ /g; s/-{4,}/---/g; s/\| not met \|/| **not met** |/'; }

# place FILE NAME: the lines between <!-- NAME --> and <!-- end --> become those of standard input.
place() {
  awk -v name="<!-- $2 -->" -v new="$(cat)" '
    $0 == name { print; print ""; print new; print ""; inside = found = 1; next }
    $0 == "<!-- end -->" { inside = 0 }
    !inside
    END { if (!found) { print name " is not in " FILENAME > "/dev/stderr"; exit 1 } }' "$1" > "$1.new"
  mv "$1.new" "$1"
}

# figure SUITE WHAT LABEL [COMPARED-WITH]: the one row whose text begins with WHAT, under a label for people who do not know the
# bench. Where several rows compare it with different things, the last argument names one.
figure() {
  grep '^|' "$own" | awk -F ' *[|] *' -v suite="$1" -v what="$2" -v label="$3" -v with="${4:-}" '
    $2 == suite && index($3, what) == 1 && (with == "" || index($5, with)) {
      sub(/\(floor\)/, "(a sleep of the kernel and a round trip)", $5)
      goal = $7 == "" ? "–" : $7 ", " ($8 == "not met" ? "**not met**" : $8)
      print "| " label " | " $4 " | " ($5 == "" ? "–" : $5) " | " goal " |"; found++
    }
    END { if (found != 1) { print found + 0 " rows begin with \"" what "\" in " suite > "/dev/stderr"; exit 1 } }'
}

# The ten of docs/benchmarks.md. The first six are those of the README.
figures() {
  echo '| what | measured | compared with | goal |'
  echo '| --- | --- | --- | --- |'
  figure pace 'achieved rate, the worst of' 'the worst of 38 buckets at 1/10s to 10,000/s: its rate is off by'
  figure pace 'lateness p99, 1,000 buckets at 10/s' '10,000 jobs/s: 99 of 100 leave late by less than'
  figure drain '100,000 buckets due at once' '100,000 buckets due at once: jobs let out' XADD
  figure wake 'LPUSH to a blocked worker, p50' 'from an `LPUSH` to a worker that waits, the median' 'LPUSH to BRPOP'
  figure memory 'a scheduled bucket, beside its jobs' 'memory in Redis of a bucket that waits, without its jobs'
  figure memory 'the daemon at rest, 1,000,000 buckets' 'memory of the daemon, 1,000,000 buckets'
  figure push 'LPUSH, pipeline 1, one bucket, with the daemon' '`LPUSH`, one after the other, with the daemon' '(without)'
  figure work 'push to acknowledgement, 10 workers' '10 workers: jobs pushed, taken and acknowledged'
  figure neighbours 'lateness p99 of a bucket at 100/s while another takes' \
    'beside a million pushes into another bucket: 99 of 100 leave late by less than'
  figure tree 'in Redis, a dispatch at depth three, uncontended, 100,000 buckets' \
    'a job below two budgets, 100,000 buckets: time in Redis'
}

ten=$(figures)
echo "$ten" | head -n 8 | sed 's/[^|]*|$//' | place README.md "bench: figures"
echo "$ten" | place docs/benchmarks.md "bench: ten"
grep '^|' "$own" | narrow | place docs/benchmarks-all.md "bench: rows"
grep '^dripd' "$own" | narrow | place docs/benchmarks-all.md "bench: machine"
for plot in lateness spacing drain profile; do cp "target/bench/$plot.svg" docs/; done
# The figures stay beside the plots, so that these can be drawn again without another run:
# cargo bench --bench bench -- --from docs/figures.json --from docs/peers.json --plots docs
cp target/bench/figures.json docs/
if [ -s "$peers" ]; then
  grep '^|' "$peers" | narrow | place docs/benchmarks.md "bench: peers"
  cp target/bench/peers.svg target/bench/peers.json docs/
else
  echo "$peers is missing: the pages keep the figures of the peers that they have" >&2
fi
