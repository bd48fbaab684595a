#!/bin/bash
# Run the whole test suite on several servers, one after the other: tests/servers.sh [NAME[=PROGRAM] ...]
#
# Without names on all of these, which come from Debian's packages and are unpacked below target/servers; nothing is
# installed. NAME=PROGRAM is a server that you have. TESTS is passed on to cargo test: TESTS='--test all functions::'.
# Prints a line of a table for each server; the exit status says whether all were well.
set -euo pipefail
cd "$(dirname "$0")/.."

# suite  the packages of a server and of what it is linked with
declare -A from=(
  [redis-7.0]="bookworm redis-server redis-tools"
  [redis-8.0]="trixie redis-server redis-tools"
  [valkey-8.1]="trixie valkey-server valkey-tools"
  [valkey-9]="sid valkey-server valkey-tools"
)
libraries=(libc6 libjemalloc2 liblzf1 libstdc++6 libsystemd0 libcap2 libgcc-s1 libzstd1 libatomic1 liblua5.1-0 lua-cjson lua-bitop zlib1g)

# unpacked NAME: fetch a server, from where this machine has its own packages, and print the path of its program. Each
# comes with the libraries of its own suite.
unpacked() {
  local name=$1 dir suite packages uri program ssl=libssl3t64
  read -r suite packages <<< "${from[$name]}"
  dir=$PWD/target/servers/$name program=${packages%% *}
  if [ ! -x "$dir/$program" ]; then
    [ "$suite" = bookworm ] && ssl=libssl3
    rm -rf "$dir" && mkdir -p "$dir"/{lists/partial,cache/archives/partial,root}
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/\{0,1\}$' | head -n 1)
    echo "deb $uri $suite main" > "$dir/list"
    local apt=(apt-get -qq -o Dir::Etc::sourcelist="$dir/list" -o Dir::Etc::sourceparts=/dev/null
      -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root)
    "${apt[@]}" update >&2
    # shellcheck disable=SC2086 # several packages
    (cd "$dir/cache" && "${apt[@]}" download $packages "$ssl" "${libraries[@]}" >&2)
    for deb in "$dir"/cache/*.deb; do dpkg -x "$deb" "$dir/root"; done
    printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' "$(find "$dir/root" -name 'ld-linux-*.so.*' | head -n 1)" \
      "$(dirname "$(find "$dir/root" -name 'libjemalloc.so.2')")" "$dir/root/usr/bin/$program" > "$dir/$program"
    chmod 755 "$dir/$program"
  fi
  echo "$dir/$program"
}

[ $# -gt 0 ] || set -- redis-7.0 redis-8.0 valkey-8.1 valkey-9
failed=0
for name; do
  program=${name#*=}
  if [ "$program" = "$name" ] && [ -z "${from[$name]-}" ]; then
    echo "$name is none of ${!from[*]}: write $name=/path/to/its/program" >&2; exit 2
  fi
  if [ "$program" = "$name" ] && ! program=$(unpacked "$name"); then
    echo "| $name | SKIPPED: its packages cannot be fetched |"
    continue
  fi
  version=$("$program" --version | sed -n 's/^\([A-Za-z]*\).* v=\([^ ]*\).*/\1 \2/p')
  log=target/servers/${name%%=*}.log
  # shellcheck disable=SC2086 # several words
  DRIPD_TEST_SERVER=$program cargo test --no-fail-fast ${TESTS:---test all --test tools} > "$log" 2>&1 || failed=1
  passed=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed.*/\1 \2/p' "$log" | awk '{ p += $1; f += $2 } END { print p + 0 " passed, " f + 0 " failed" }')
  [ "${passed%% *}" -gt 0 ] || failed=1
  echo "| $version | $(date +%F) | $passed |"
  sed -n 's/^test \(.*\) \.\.\. FAILED.*/    failed: \1/p' "$log"
done
exit $failed
