#!/bin/bash
# What becomes of a machine on which the packages are installed, upgraded and removed. Run by run.sh, with the packages in /t.
#
# A line a case, "ok NAME" or "not ok NAME: why"; the exit status says whether all were well. The cases build on one another.
set -u

failed=0

fail() { echo "$*" > /run/why; exit 1; }
is() { [ "$2" = "$3" ] || fail "$1 is '$2' and should be '$3'"; }
eventually() { # WHAT COMMAND...
  local what=$1 tries
  shift
  for tries in {1..400}; do
    "$@" > /dev/null 2>&1 && return
    sleep 0.05
  done
  fail "$what: not within 20 s"
}
answers() { local want=$1; shift; [ "$("$@")" = "$want" ]; }

cli() { redis-cli -p 7379 "$@" 2>&1; }
show() { systemctl show -P "$1" dripd; }
active() { answers active show ActiveState && cli ping; }
capacity() { cli fcall_ro drip_peek 1 drip:queue:kept | sed -n 3p; }
log() { journalctl -q -o cat -u dripd; }
# What there is of dripd on the machine, apart from this test and what systemd notes of units that once were.
traces() {
  find /etc /opt /srv /usr /var -xdev \( -path /var/lib/systemd -o -path /var/log -o -path /var/cache -o -path /var/tmp \) -prune -o -iname '*dripd*' -print
}

# Work goes through, and what the commands say fits. A worker takes the job: where one lies for long its route is held.
works() {
  local entry
  eventually "the service" active
  is "the reply to a push" "$(cli lpush "drip:queue:$1" job)" 1
  eventually "the job in drip:ready" answers job sh -c "redis-cli -p 7379 xrevrange drip:ready + - count 1 | tail -n 9 | grep -x job"
  dripd status "$1" | grep -q "^bucket  *$1\$" || fail "dripd status says $(dripd status "$1")"
  entry=$(redis-cli -p 7379 xreadgroup group workers me count 1 streams drip:ready '>' | sed -n 2p)
  is "the acknowledgement" "$(redis-cli -p 7379 fcall drip_ack 1 drip:ready "$entry")" 1
}

case_is() { # NAME, a function of that name with _ for -
  rm -f /run/why
  (set -e; "${1//-/_}") > /run/said 2>&1
  if [ $? = 0 ]; then
    echo "ok $1"
  else
    failed=1
    [ -s /run/why ] || tail -n 3 /run/said > /run/why # a command of the case failed
    echo "not ok $1: $(tr '\n' ' ' < /run/why | cut -c 1-400)"
    log | tail -n 12 | cut -c 1-200 | sed 's/^/    /'
  fi
}

# --- the Debian package ---

deb_without_a_server_says_what_to_install_and_serves_once_there_is_one() {
  local program
  for program in $servers; do mv "$program" "$program.away"; done
  dpkg -i /t/one.deb
  is "enabled" "$(systemctl is-enabled dripd)" enabled
  eventually "what to install, in the log" sh -c 'journalctl -q -o cat -u dripd | grep -i "install"'
  for program in $servers; do mv "$program.away" "$program"; done
  works first
}

deb_has_everything_in_its_place() {
  is "the program" "$(command -v dripd)" /usr/bin/dripd
  is "the unit" "$(readlink -f "$(show FragmentPath)")" "$(readlink -f /lib)/systemd/system/dripd.service"
  dpkg-query -W -f '${Conffiles}' dripd | grep -q ' /etc/dripd/config.toml ' || fail "the configuration is no conffile"
  dpkg-query -W -f '${Suggests}' dripd | grep -q 'valkey-server | redis-server' || fail "no server is suggested"
  dpkg -V dripd
  local page
  for page in dripd dripd-push dripd-run; do
    MANPAGER=cat man $page 2> /dev/null | grep -q 'EXIT STATUS' || fail "man $page has no EXIT STATUS"
  done
  bash -c '. /usr/share/bash-completion/completions/dripd && complete -p dripd' | grep -q _dripd || fail "no completion"
  is "who may write the configuration" "$(stat -c '%a %U' /etc/dripd/config.toml)" "644 root"
}

deb_reloads_its_configuration() {
  printf '[defaults]\nrate = "1/h"\ncapacity = 77\n' > /etc/dripd/config.toml
  systemctl reload dripd
  is "the capacity" "$(capacity)" 77
  cli lpush drip:queue:kept 1 2 3 4 5
  eventually "four that wait" answers 4 redis-cli -p 7379 llen drip:queue:kept
}

deb_upgrades_with_configuration_and_jobs_kept() {
  local pid
  pid=$(show MainPID)
  dpkg -i /t/two.deb < /dev/null
  is "the version" "$(dpkg-query -W -f '${Version}' dripd)" "${version}-2"
  [ "$(show MainPID)" != "$pid" ] || fail "the old daemon still runs"
  eventually "the service" active
  is "the capacity" "$(capacity)" 77
  is "what waits" "$(cli llen drip:queue:kept)" 4
  is "restarts for want of anything" "$(show NRestarts)" 0
}

deb_rolls_back() {
  dpkg -i /t/one.deb < /dev/null
  eventually "the service" active
  is "what waits" "$(cli llen drip:queue:kept)" 4
}

deb_removed_stops_and_leaves_configuration_and_data() {
  local pid
  pid=$(show MainPID)
  dpkg -r dripd
  [ ! -e "/proc/$pid" ] || fail "the daemon still runs"
  ! cli ping | grep -q PONG || fail "its Redis still runs"
  [ ! -e /usr/bin/dripd ] && [ ! -e /usr/lib/systemd/system/dripd.service ] || fail "the program is still there"
  grep -q 'capacity = 77' /etc/dripd/config.toml || fail "the configuration is gone"
  [ -d /var/lib/private/dripd ] || fail "the data is gone"
  dpkg -i /t/two.deb < /dev/null
  eventually "the service" active
  is "the capacity" "$(capacity)" 77
  is "what waits" "$(cli llen drip:queue:kept)" 4
}

deb_purged_leaves_nothing() {
  dpkg -P dripd
  is "what is left" "$(traces | xargs)" ""
  is "the unit" "$(systemctl show -P LoadState dripd)" not-found
}

# --- the tarball ---

tarball_is_whole_and_runs() {
  local tarball=(/t/dripd-*.tar.gz)
  (cd /t && sha256sum -c "${tarball##*/}.sha256")
  tar -xzf "${tarball[0]}" -C /usr/local --strip-components=1
  case $tarball in
    *musl*) ldd /usr/local/bin/dripd 2>&1 | grep -qE 'statically linked|not a dynamic' || fail "it is not static" ;;
  esac
  is "the version" "$(/usr/local/bin/dripd --version)" "dripd $version"
  [ -s /usr/local/share/doc/dripd/sbom.cdx.json ] || fail "no list of what is in it"
  MANPAGER=cat man dripd-work 2> /dev/null | grep -q 'EXIT STATUS' || fail "no man page"
  systemctl daemon-reload
  systemctl enable --now dripd
  works tarball
  is "the program that runs" "$(readlink "/proc/$(show MainPID)/exe")" /usr/local/bin/dripd
}

tarball_can_be_taken_away() {
  systemctl disable --now dripd
  rm -rf /var/lib/private/dripd /var/lib/dripd # the data is not the package's
  tar -tzf /t/dripd-*.tar.gz | sed 's|^[^/]*/||; /^$/d; /\/$/d' | (cd /usr/local && xargs rm)
  rm -rf /usr/local/share/doc/dripd
  systemctl daemon-reload
  is "what is left" "$(traces | xargs)" ""
}

# --- make install ---

make_install_needs_no_cargo_and_obeys_prefix() {
  rm -rf /run/tree && mkdir /run/tree && tar -xf /t/tree.tar -C /run/tree
  ! command -v cargo > /dev/null || fail "cargo is on the PATH: $(command -v cargo)"
  make -C /run/tree install PREFIX="$1"
  is "what the unit runs" "$(sed -n 's/^Exec[A-Z][a-z]*=\(.*dripd\) .*/\1/p' /etc/systemd/system/dripd.service | sort -u)" "$1/bin/dripd"
  systemctl daemon-reload
  systemctl start dripd
  PATH=$1/bin:$PATH works installed
  is "the program that runs" "$(readlink "/proc/$(show MainPID)/exe")" "$1/bin/dripd"
  systemctl reload dripd
  systemctl stop dripd
  printf '# mine\n' >> /etc/dripd/config.toml
  make -C /run/tree install PREFIX="$1"
  grep -q '# mine' /etc/dripd/config.toml || fail "the configuration was replaced"
  make -C /run/tree uninstall PREFIX="$1"
  rm -rf /var/lib/private/dripd /var/lib/dripd
  systemctl daemon-reload
  is "files left below $1" "$(find "$1" -name '*dripd*' ! -type d | xargs)" ""
  [ "$1" = /usr/local ] || rm -r "$1" # directories are left
  is "what is left" "$(traces | xargs)" "/etc/dripd"
  rm -r /etc/dripd
}
make_install_in_usr_local() { make_install_needs_no_cargo_and_obeys_prefix /usr/local; }
make_install_in_opt() { make_install_needs_no_cargo_and_obeys_prefix /opt/dripd-1; }
make_install_anywhere() { make_install_needs_no_cargo_and_obeys_prefix /srv/tools; }

make_install_says_that_it_must_be_built_first() {
  rm -rf /run/tree && mkdir /run/tree && tar -xf /t/tree.tar -C /run/tree && rm -r /run/tree/target
  ! make -C /run/tree install > /run/made 2>&1 || fail "it installed nothing and was content"
  grep -q "run 'make build' first" /run/made
}

# It removes things: only where nothing stays.
tr '\0' '\n' < /proc/1/environ | grep -qx container=dripd-boot || { echo "run me by tests/packages/run.sh" >&2; exit 2; }

skip() { echo "SKIPPED: the packages cannot be tested here: $*"; exit 77; }
for program in dpkg redis-cli make man; do command -v $program > /dev/null || skip "there is no $program"; done
servers=
for program in valkey-server redis-server; do
  ! command -v $program > /dev/null || servers="$servers $(command -v $program)"
done
[ -n "$servers" ] || skip "there is no Redis or Valkey server"

# A container's root may forbid what a machine's allows: to start services, and to unpack man pages.
rm -f /usr/sbin/policy-rc.d /etc/dpkg/dpkg.cfg.d/*
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
version=$(dpkg-deb -f /t/one.deb Version) version=${version%-*}
traces | xargs -r rm -rf # what this machine has of its own

for name in deb-without-a-server-says-what-to-install-and-serves-once-there-is-one deb-has-everything-in-its-place \
  deb-reloads-its-configuration deb-upgrades-with-configuration-and-jobs-kept deb-rolls-back \
  deb-removed-stops-and-leaves-configuration-and-data deb-purged-leaves-nothing \
  tarball-is-whole-and-runs tarball-can-be-taken-away \
  make-install-says-that-it-must-be-built-first make-install-in-usr-local make-install-in-opt make-install-anywhere; do
  case_is $name
done
exit $failed
