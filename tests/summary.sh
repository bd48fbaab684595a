#!/bin/sh
# What a log of tests says was left out, by reason, and what took longest: summary.sh LOG SECONDS, where SECONDS is how long all of it took.
# It reads the lines of the two harnesses,
#   test a::name ... ok <1.234s>      test a::name ... ignored, a reason      test a::name ... ignored (a reason)      time a::name <1.234s>
# and the summary of each program. Its last line counts them all.
set -u
# Colours, if there are any.
sed "s/$(printf '\033')\[[0-9;]*m//g" "$1" | awk -v all_took="$2" '
  /^test .* \.\.\. ignored/ {
    name = $0; sub(/^test /, "", name); sub(/ +\.\.\. ignored.*/, "", name)
    why = $0; sub(/.* \.\.\. ignored(, )?/, "", why)
    if (why ~ /^ \(.*\)$/) why = substr(why, 3, length(why) - 3)
    if (why == "") why = "no reason is given"
    if (!(why in names)) reasons[++kinds] = why
    names[why] = names[why] "\n    " name; count[why]++; all++
  }
  / <[0-9.]+s>$/ && /^(test|time) / {
    seconds = $NF; gsub(/[<s>]/, "", seconds); took[$2] = seconds + 0
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
    print "\nthe slowest:"
    for (n = 0; n < 10; n++) {
      longest = ""
      for (name in took) if (longest == "" || took[name] > took[longest]) longest = name
      if (longest == "") break
      printf "%8.1f s  %s\n", took[longest], longest; delete took[longest]
    }
    printf "all of them took %d min %d s\n\n%d passed, %d failed, %d skipped\n", all_took / 60, all_took % 60, passed, failed, skipped
  }'
