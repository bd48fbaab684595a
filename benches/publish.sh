#!/bin/sh
# Put what the last `make bench` and `make bench-peers` found into README.md and docs/, between the comments that name it there.
set -eu
cd "$(dirname "$0")/.."
own=target/bench/figures.md peers=target/bench/peers.md
for file in "$own" "$peers"; do
  [ -s "$file" ] || { echo "$file is missing: run make bench and make bench-peers first" >&2; exit 1; }
done

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

grep '^|' "$own" | narrow | place docs/benchmarks.md "bench: rows"
grep '^|' "$own" | awk -F ' *[|] *' 'NR < 3 || $7 != ""' | narrow | place README.md "bench: goals"
grep '^dripd' "$own" | narrow | place docs/benchmarks.md "bench: machine"
for page in README.md docs/benchmarks.md; do grep '^|' "$peers" | narrow | place "$page" "bench: peers"; done
# The figures stay beside the plots, so that these can be drawn again without another run.
cp target/bench/figures.json target/bench/peers.json docs/
cargo bench --quiet --bench bench -- --from docs/figures.json --from docs/peers.json --plots docs
