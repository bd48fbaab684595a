#!/bin/sh
# The licences of everything that is compiled into the binary, with their notices, as they ask for where it is given away:
# notices.sh [TARGET]. The texts are those of the packages themselves. Cargo fetches those that a build has not needed, such as
# what only tests use: without them it lists none.
set -eu
cd "$(dirname "$0")/.."

target=${1:-$(rustc -vV | sed -n 's/^host: //p')}
metadata=$(cargo metadata --locked --filter-platform "$target" --format-version 1)
manifests=$(echo "$metadata" | grep -o '"manifest_path":"[^"]*"' | cut -d '"' -f 4)
tree=$(cargo tree --locked --edges normal,no-proc-macro --target "$target" --prefix none --format '{p}|{l}')
crates=$(echo "$tree" | sed 's/ ([^|]*)//' | sort -u)

seen=$(mktemp -d)
trap 'rm -rf "$seen"' EXIT

# A text is told once: the Apache License comes with every second package.
tell() {
  sum=$(cksum < "$1" | tr ' ' -)
  if [ -e "$seen/$sum" ]; then
    echo "The same text as of $(cat "$seen/$sum")."
  else
    echo "$name, ${1##*/}" > "$seen/$sum"
    printf '\n' && cat "$1"
  fi
}

echo "dripd contains the work of others, under the licences named here."
echo "$crates" | while IFS='|' read -r crate licence; do
  name=${crate% v*} version=${crate##* v}
  [ "$name" != dripd ] || continue
  manifest=$(echo "$manifests" | grep "/$name-$version/Cargo.toml$") || { echo "notices: where is $name $version?" >&2; exit 1; }
  dir=$(dirname "$manifest")
  printf '\n%s\n%s %s: %s\n' ------------------------------------------------------------------------ "$name" "$version" "$licence"
  found=$(find "$dir" -maxdepth 1 -type f \( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'unlicense*' \) | sort)
  [ -n "$found" ] || { echo "The package has no text of it; its authors: $(sed -n 's/^authors = //p' "$dir/Cargo.toml")"; continue; }
  echo "$found" | while read -r file; do tell "$file"; done
done

# What is no crate: the charts of the dashboard.
name=uPlot
printf '\n%s\n' ------------------------------------------------------------------------
sed -n '1s/:.*/: MIT/p' src/http/pages/uplot.md | sed 's/, MIT//; s/ (.*//'
tell src/http/pages/uplot.LICENSE
