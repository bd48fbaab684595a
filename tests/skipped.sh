#!/bin/sh
# What a log of tests says was left out, by reason: skipped.sh LOG. It reads the lines of the two harnesses,
#   test a::name ... ignored, a reason      and      test a::name ... ignored (a reason)
# and the summary of each program. Its last line counts them all.
set -u
# Colours, if there are any.
sed "s/$(printf '\033')\[[0-9;]*m//g" "$1" | awk '
  /^test .* \.\.\. ignored/ {
    name = $0; sub(/^test /, "", name); sub(/ +\.\.\. ignored.*/, "", name)
    why = $0; sub(/.* \.\.\. ignored(, )?/, "", why)
    if (why ~ /^ \(.*\)$/) why = substr(why, 3, length(why) - 3)
    if (why == "") why = "no reason is given"
    if (!(why in names)) reasons[++kinds] = why
    names[why] = names[why] "\n    " name; count[why]++; all++
  }
  /^test result: / {
    programs++
    for (i = 1; i < NF; i++) {
      if ($(i + 1) == "passed;") passed += $i
      if ($(i + 1) == "failed;") failed += $i
      if ($(i + 1) == "ignored;") skipped += $i
    }
  }
  END {
    if (!programs) { print "no test was run"; exit }
    if (all == 0) print "SKIPPED: nothing; every test had what it needs"
    for (k = 1; k <= kinds; k++) {
      why = reasons[k]
      printf "SKIPPED: %d %s: %s%s\n", count[why], count[why] == 1 ? "test" : "tests", why, names[why]
    }
    printf "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped
  }'
