#!/bin/bash
# What dripd.service does under a real systemd. Run by boot.sh, with the binary and the unit in /t:
#
#   tests/systemd/boot.sh tests/systemd/cases.sh DIR
#
# A line a case, "ok NAME" or "not ok NAME: why"; the exit status says whether all were well. Each case begins with no
# dripd, no data, no configuration and no drop-in. Two further daemons, quiet and waiting, run beside all of them from
# the first line to the last, because what they show takes longer than any case.
set -u

UNIT=dripd
OUTSIDE=6390      # a Redis that is not dripd's own
SOCKET=/run/dripd-http.sock
WATCHDOG=10       # seconds, for the daemons that must live
PACER_SILENCE=25  # seconds, longer than a pacer may sleep and be late before it counts as stuck
failed=0

for cli in redis-cli valkey-cli; do command -v $cli > /dev/null && break; done
for server in redis-server valkey-server; do command -v $server > /dev/null && break; done
own() { "$cli" -p 7379 "$@" 2>&1; }
own_pid() { own info server | sed -n 's/^process_id:\([0-9]*\).*/\1/p'; }
outside() { "$cli" -p "$OUTSIDE" "$@" 2>&1; }
show() { systemctl show -P "$1" "${2:-$UNIT}"; }
log() { journalctl -q -o cat -u "$UNIT" --after-cursor "$began"; } # of this case
micros() { local up; read -r up _ < /proc/uptime; echo $((10#${up/./} * 10000)); } # on a clock that nobody sets

# --- how a case says what it wants ---

fail() { echo "$*" > /run/why; exit 1; }
is() { [ "$2" = "$3" ] || fail "$1 is $2 and should be $3"; }

# eventually WHAT COMMAND...: poll until the command succeeds. Long enough for a machine that does much else: only what never comes is waited
# for in vain.
eventually() {
  local deadline=$(($(micros) + 60000000)) what=$1
  shift
  until "$@" > /dev/null 2>&1; do
    [ "$(micros)" -lt "$deadline" ] || fail "$what: not within 60 s, and the unit says \"$(show StatusText)\""
    sleep 0.05
  done
}

shows() { [[ $(show "$1" "${3:-$UNIT}") == $2 ]]; } # the right side is a pattern
answers() { local want=$1; shift; [ "$("$@")" = "$want" ]; }
logged() { log | grep -q -- "$1"; }

# --- what cases do ---

configure() { mkdir -p /etc/dripd && printf '%s\n' "$@" > /etc/dripd/config.toml; }

drop_in() { # UNIT LINE...: the lines go into its [Service]
  mkdir -p "/run/systemd/system/$1.service.d"
  { echo '[Service]'; printf '%s\n' "${@:2}"; } > "/run/systemd/system/$1.service.d/case.conf"
  systemctl daemon-reload
}

start() { timeout 60 systemctl start "$UNIT" > /dev/null 2>&1 || fail "the start failed"; }

outside_redis() { # PORT UNIT [OPTION...]
  mkdir -p "/run/$2"
  systemd-run -q --collect --unit="$2" "$server" --port "$1" --dir "/run/$2" --save '' "${@:3}" 2>&1
  eventually "a Redis on port $1" bound "$1"
}
bound() { "$cli" -p "$1" ping | grep -qE 'PONG|NOAUTH'; }

fresh() {
  systemctl stop "$UNIT.socket" 'dripd-worker@*' "$UNIT" outside
  systemctl reset-failed "$UNIT" outside
  rm -rf /run/systemd/system/$UNIT.service.d /run/systemd/system/dripd-worker@.service.d /etc/dripd /etc/credstore
  rm -rf /var/lib/$UNIT /var/lib/private/$UNIT /opt/valkey
  systemctl daemon-reload
} > /dev/null 2>&1

case_is() { # NAME, a function of that name with _ for -
  fresh
  rm -f /run/why
  journalctl --sync
  began=$(journalctl -q -n 0 --show-cursor | sed -n 's/^-- cursor: //p')
  (set -e; "${1//-/_}") > /run/said 2>&1
  if [ $? = 0 ]; then
    echo "ok $1"
  else
    failed=1
    [ -s /run/why ] || tail -n 3 /run/said > /run/why # a command of the case failed
    echo "not ok $1: $(tr '\n' ' ' < /run/why | cut -c 1-300)"
    log | tail -n 12 | cut -c 1-200 | sed 's/^/    /'
  fi
}

# --- the cases ---

exposure() { systemd-analyze security --offline=true --threshold=11 --no-pager /t/dripd.service; }

# With the drop-in for a machine without a network: no more than three tenths are left.
exposure_without_network() {
  sed -e '/^\[Install\]/,$d' /t/dripd.service > /run/quiet.service
  sed -e '1,/^\[Service\]/d' /t/no-network.conf >> /run/quiet.service
  systemd-analyze security --offline=true --threshold=3 --no-pager /run/quiet.service
}

# READY means that it drains; the unit needs neither a configuration nor a Redis.
starts_with_nothing() {
  start
  is "the state" "$(show ActiveState)" active
  is "the reply to a push" "$(own lpush drip:queue:x job)" 1
  eventually "the job in drip:ready" answers 1 own xlen drip:ready
  is "the number of restarts" "$(show NRestarts)" 0
}

runs_as_a_dynamic_user() {
  start
  local pid uid data=/var/lib/private/$UNIT
  for pid in $(cat "/sys/fs/cgroup$(show ControlGroup)/cgroup.procs"); do
    uid=$(stat -c %u "/proc/$pid")
    [ "$uid" -ge 61184 ] && [ "$uid" -le 65519 ] || fail "process $pid runs as $uid"
    is "what process $pid may do" "$(awk '/^CapEff/ { print $2 }' "/proc/$pid/status")" 0000000000000000
    is "the core limit of $pid" "$(awk '/^Max core file size/ { print $5 $6 }' "/proc/$pid/limits")" 00
  done
  is "the data directory" "$(stat -c '%a %u' $data)" "700 $uid"
  is "the runtime directory" "$(stat -Lc '%a %u' /run/$UNIT)" "700 $uid"
  [ -z "$(find $data ! -type d -perm /077)" ] || fail "others may open $(find $data ! -type d -perm /077)"
}

# Lua, the fork of a rewrite and all that Redis asks of the kernel at the start get through the sandbox.
built_in_redis_is_whole() {
  start
  own bgrewriteaof
  eventually "a rewrite of the append-only file" rewritten
  ! grep -iE 'not permitted|permission denied|not implemented' /var/lib/private/$UNIT/redis.log || fail "redis complains"
}
rewritten() { own info persistence | grep -q 'aof_rewrites:1' && own info persistence | grep -q 'aof_rewrite_in_progress:0' &&
  own info persistence | grep -q 'aof_last_bgrewrite_status:ok'; }

built_in_redis_may_be_in_opt() {
  [ $server = redis-server ] || return 0 # a valkey-server on the PATH goes first
  install -D "$(command -v $server)" /opt/valkey/bin/valkey-server
  start
  local pid
  pid=$(own_pid)
  is "the own server" "$(readlink "/proc/$pid/exe")" /opt/valkey/bin/valkey-server
}

status_is_live() {
  start
  eventually "a first status" shows StatusText 'serving *'
  # One job: further ones stay where they are while no worker takes it, if they do not leave within the ready window.
  is "the length of the queue" "$(own lpush drip:queue:x a)" 1
  eventually "a job in the status" shows StatusText '*[^0-9]1 jobs dispatched*'
}

reload_is_live_when_it_returns() {
  start
  is "the capacity" "$(own fcall_ro drip_peek 1 drip:queue:x | sed -n 3p)" 1000
  local capacity pid
  pid=$(show MainPID)
  for capacity in 77 78; do
    configure '[defaults]' "capacity = $capacity"
    systemctl reload $UNIT
    is "the capacity" "$(own fcall_ro drip_peek 1 drip:queue:x | sed -n 3p)" $capacity
  done
  is "the main process" "$(show MainPID)" "$pid"
  is "the state" "$(show ActiveState)" active
}

a_bad_reload_changes_nothing() {
  configure '[defaults]' 'capacity = 77'
  start
  local pid
  pid=$(show MainPID)
  configure '[defaults]' 'capacity = 78' 'rate = "fast"'
  ! systemctl reload $UNIT 2> /dev/null || fail "the reload succeeded"
  eventually "the problem in the log" logged 'defaults.rate'
  is "the capacity" "$(own fcall_ro drip_peek 1 drip:queue:x | sed -n 3p)" 77
  is "the state" "$(show ActiveState) $(show MainPID)" "active $pid"
  own lpush drip:queue:x job
  eventually "the job in drip:ready" answers 1 own xlen drip:ready
}

# More often than the default start limit allows, too.
a_bad_configuration_is_not_retried() {
  configure '[defaults]' 'rate = "fast"'
  for _ in {1..7}; do
    ! timeout 60 systemctl start $UNIT 2> /dev/null || fail "it started"
    is "the end" "$(show Result) $(show ExecMainStatus)" "exit-code 78"
    is "the state" "$(show ActiveState)/$(show SubState)" failed/failed # auto-restart, if one were to come
  done
  is "the number of restarts" "$(show NRestarts)" 0
  configure '[defaults]' 'rate = "5/s"'
  start
}

restarted() { shows NRestarts 1 && shows ActiveState active; }

killed_it_comes_back_with_its_jobs() {
  configure '[defaults]' 'rate = "1/h"'
  start
  own lpush drip:queue:x 1 2 3 4 5
  eventually "the first job in drip:ready" answers 1 own xlen drip:ready
  local redis
  redis=$(own_pid)
  kill -KILL "$(show MainPID)"
  eventually "the restart" restarted
  [ -n "$redis" ] && [ ! -e "/proc/$redis" ] || fail "redis of the killed one, process $redis, is still there"
  is "what is left in the queue" "$(own lrange drip:queue:x 0 -1 | xargs)" "5 4 3 2"
  is "what was dispatched" "$(own xlen drip:ready)" 1
}

stuck_it_is_restarted() {
  drop_in $UNIT WatchdogSec=5s
  start
  kill -STOP "$(show MainPID)"
  eventually "the restart" restarted
  eventually "the watchdog in the log" logged 'Watchdog timeout'
  own lpush drip:queue:x job
  eventually "the job in drip:ready" answers 1 own xlen drip:ready
}

# It has 3 s by the unit, asks for more, and Redis comes after 5.
redis_may_come_late() {
  configure '[redis]' "url = \"redis://127.0.0.1:$OUTSIDE\""
  drop_in $UNIT TimeoutStartSec=3s
  systemctl start --no-block $UNIT
  eventually "the wait in the status" shows StatusText 'waiting for redis*'
  local until=$(($(micros) + 5000000))
  while [ "$(micros)" -lt $until ]; do
    is "the state without a Redis" "$(show ActiveState)" activating
    sleep 0.2
  done
  outside_redis $OUTSIDE outside
  outside lpush drip:queue:x job
  eventually "READY" shows ActiveState active
  eventually "the job in drip:ready" answers 1 outside xlen drip:ready
  is "the number of restarts" "$(show NRestarts)" 0
}

the_password_is_a_credential() {
  configure '[redis]' "url = \"redis://localhost:$OUTSIDE\""
  outside_redis $OUTSIDE outside --requirepass swordfish
  outside ping | grep -q NOAUTH
  (umask 077; mkdir -p /etc/credstore; echo swordfish > /etc/credstore/redis-password)
  start
  outside --no-auth-warning -a swordfish lpush drip:queue:x job
  eventually "the job in drip:ready" answers 1 outside --no-auth-warning -a swordfish xlen drip:ready
  ! logged swordfish || fail "the password is in the log"
}

# A dynamic user reads no file that is not for everybody: the key of TLS, and what belongs to it, are credentials.
what_tls_needs_is_a_credential() {
  local files="ca.pem client.pem client.key" file tls=6392
  for file in $files; do install -D -m 600 /t/$file /etc/credstore/$file; done
  drop_in $UNIT LoadCredential=ca.pem LoadCredential=client.pem LoadCredential=client.key
  configure '[redis]' "url = \"rediss://localhost:$tls\"" 'tls = { ca = "ca.pem", cert = "client.pem", key = "client.key" }'
  outside_redis $OUTSIDE outside --tls-port $tls --tls-cert-file /t/server.pem --tls-key-file /t/server.key --tls-ca-cert-file /t/ca.pem
  start
  outside lpush drip:queue:x job
  eventually "the job in drip:ready" answers 1 outside xlen drip:ready
}

# A request through curl: the status, then the body on the next lines.
http() { curl -s -o /run/answer -w '%{http_code}' --max-time 20 "$@"; }

the_http_token_is_a_credential() {
  (umask 077; mkdir -p /etc/credstore; echo wombat > /etc/credstore/http-token)
  start
  local url=http://127.0.0.1:7380
  is "a push without a token" "$(http -d job $url/v1/buckets/x/jobs)" 401
  is "a push with the token" "$(http -d job -H 'Authorization: Bearer wombat' $url/v1/buckets/x/jobs)" 202
  is "a pause with the token" "$(http -X POST -H 'Authorization: Bearer wombat' $url/v1/buckets/x/pause)" 200
  dripd_settings | grep -q 'http-token@' || fail "who paused it is not told: $(dripd_settings)"
  ! logged wombat || fail "the token is in the log"
}
dripd_settings() { DRIPD_REDIS_URL=redis://127.0.0.1:7379 /usr/local/bin/dripd settings --json; }

# systemd listens: its mode and group decide, and while dripd restarts no connection is refused and no request lost.
the_socket_of_systemd_outlives_a_restart() {
  systemctl start $UNIT.socket
  is "the socket" "$(stat -c '%a %U %G' $SOCKET)" "660 root root"
  start
  eventually "the socket in the log" logged 'from systemd'
  is "a push" "$(http --unix-socket $SOCKET -d job http://localhost/v1/buckets/x/jobs)" 202
  ! http http://127.0.0.1:7380/healthz > /dev/null || fail "it listens at a port as well"
  rm -f /run/statuses /run/stop
  for _ in 1 2 3; do pushes & done
  local restarts=0
  while [ $restarts -lt 3 ]; do
    sleep 0.5
    systemctl restart $UNIT
    restarts=$((restarts + 1))
  done
  sleep 0.5
  touch /run/stop
  wait
  local pushed
  pushed=$(grep -c '^202$' /run/statuses)
  is "the other answers" "$(grep -v '^202$' /run/statuses | sort | uniq -c | xargs)" ""
  [ "$pushed" -gt 20 ] || fail "only $pushed pushes in three restarts"
  is "the jobs" "$(($(own llen drip:queue:y) + $(own xlen drip:ready) - 1))" "$pushed"
  systemctl stop $UNIT $UNIT.socket
  [ ! -e $SOCKET ] || fail "the socket is left over"
}
# A push after the other, each over a connection of its own. While the built-in Redis restarts too it is 503, and sent again, as its
# answer says.
pushes() {
  local status
  while [ ! -e /run/stop ]; do
    status=$(curl -s -o /dev/null -w '%{http_code}' --max-time 20 --unix-socket $SOCKET -d job http://localhost/v1/buckets/y/jobs)
    [ "$status" = 503 ] || echo "$status" >> /run/statuses
  done
}

# The drop-in for a machine without a network: Redis and HTTP by Unix sockets, and nothing else is there.
without_a_network_it_serves_by_unix_sockets() {
  outside_redis $OUTSIDE outside --unixsocket /run/outside.sock --unixsocketperm 777
  configure '[redis]' 'url = "unix:///run/outside.sock"'
  install -D -m 644 /t/no-network.conf /run/systemd/system/$UNIT.service.d/no-network.conf
  systemctl daemon-reload
  systemctl start $UNIT.socket
  start
  is "a push" "$(http --unix-socket $SOCKET -d job http://localhost/v1/buckets/x/jobs)" 202
  eventually "the job in drip:ready" answers 1 outside xlen drip:ready
  is "its interfaces" "$(nsenter -t "$(show MainPID)" -n ip -o link | awk -F': ' '{ print $2 }' | xargs)" lo
}

# The line that people read, its fields as fields, and how bad it is.
the_journal_has_fields_and_priorities() {
  configure '[defaults]' 'rate = "5/s"'
  start
  eventually "a record by its field" in_journal 'starting version=.* config=' DRIPD_CONFIG=/etc/dripd/config.toml
  is "the priority of a start" "$(journal -o json DRIPD_VERSION="$(dripd_version)" | sed -n 's/.*"PRIORITY":"\(.\)".*/\1/p' | head -n 1)" 6
  ! in_journal . -p warning || fail "a good start is no warning: $(journal -p warning | head -n 3)"
  systemctl stop $UNIT
  configure '[defaults]' 'rate = "fast"' 'capacity = -1'
  systemctl start $UNIT && fail "it starts with a bad configuration"
  eventually "the failure among the errors" failed_with 'defaults.capacity: -1'
  is "the lines of it" "$(errors | grep -c 'defaults\.')" 2
}
# Of a process that has ended before the journal takes its words, on a busy machine, only its own word says who it was.
errors() { journalctl -q -o cat --after-cursor "$began" SYSLOG_IDENTIFIER=dripd -p err; }
failed_with() { errors | grep -q -- "$1"; }
journal() { journalctl -q -o cat _SYSTEMD_INVOCATION_ID="$(show InvocationID)" "$@"; } # of the last start
in_journal() { journal "${@:2}" | grep -q -- "$1"; }
dripd_version() { /usr/local/bin/dripd --version | cut -d' ' -f 2; }

# A collector that reads JSON gets it under systemd, too.
a_format_that_was_asked_for_is_kept() {
  drop_in $UNIT 'ExecStart=' 'ExecStart=/usr/local/bin/dripd run --log-format json'
  start
  eventually "a record as JSON" logged '^{"timestamp":.*"message":"starting"'
}

stops_cleanly() {
  start
  own lpush drip:queue:x job
  local pid took
  pid=$(own_pid) took=$(micros)
  systemctl stop $UNIT
  took=$(($(micros) - took))
  [ $took -lt 10000000 ] || fail "it took $took us"
  is "the end" "$(show ActiveState) $(show Result) $(show ExecMainStatus)" "inactive success 0"
  [ -n "$pid" ] && [ ! -e "/proc/$pid" ] || fail "redis, process $pid, is still there"
  grep -q 'bye bye' /var/lib/private/$UNIT/redis.log || fail "redis was killed"
}

# --- the two that run beside the cases ---

beside() { # NAME CONFIGURATION...
  sed "s/^\(State\|Runtime\)Directory=.*/\1Directory=$1/" /t/dripd.service > "/run/systemd/system/$1.service"
  mkdir -p /etc/dripd && printf '%s\n' "${@:2}" > "/etc/dripd/$1.toml"
  drop_in "$1" "WatchdogSec=$WATCHDOG" "Environment=DRIPD_CONFIG=/etc/dripd/$1.toml"
  timeout 60 systemctl start "$1" > /dev/null 2>&1
}

lives_by_its_watchdog() { # UNIT SINCE: pinged for long enough, by the process that began
  eventually "pings of $1 for $PACER_SILENCE s" pinged_for "$@"
  is "the state of $1" "$(show ActiveState "$1")" active
  is "the number of restarts of $1" "$(show NRestarts "$1")" 0
}
pinged_for() { [ $(($(show WatchdogTimestampMonotonic "$1") - $2)) -ge $((PACER_SILENCE * 1000000)) ]; }

a_quiet_one_lives() { lives_by_its_watchdog quiet "$(show ActiveEnterTimestampMonotonic quiet)"; }

one_that_waits_for_redis_lives() {
  eventually "the wait in the status" shows StatusText 'waiting for redis*' waiting
  lives_by_its_watchdog waiting "$lost"
  outside_redis 6391 waited-for
  "$cli" -p 6391 lpush drip:queue:x job
  eventually "the job in drip:ready" answers 1 "$cli" -p 6391 xlen drip:ready
}

# The template of examples/: a unit for each route, with slots from a file, and an end that leaves nothing in hand.
workers_of_a_route_are_an_instance_of_the_template() {
  configure '[defaults]' 'rate = "1000/s"' '[[bucket]]' 'match = "sms:*"' 'route = "sms"'
  echo CONCURRENCY=3 > /etc/dripd/worker-sms.env
  start
  drop_in dripd-worker@ ExecStart= 'ExecStart=/usr/local/bin/dripd work --route %i --concurrency ${CONCURRENCY} --print'
  timeout 60 systemctl start dripd-worker@sms dripd-worker@default || fail "the start failed"
  own lpush drip:queue:sms:a 'for sms'
  own lpush drip:queue:b 'for default'
  eventually "the job of the route" of_worker sms '^for sms$'
  eventually "the job of no route" of_worker default '^for default$'
  of_worker sms 'slots=3' || fail "the slots are not those of the file"
  of_worker default 'slots=10' || fail "the slots are not those of the unit"
  ! of_worker default 'for sms' || fail "an instance took the job of another route"
  systemctl stop dripd-worker@sms
  is "its result" "$(show Result dripd-worker@sms)" success
  is "what workers of the route hold" "$(own xpending drip:ready:sms workers | head -n 1)" 0
  systemctl cat dripd-worker@sms | grep -q '^ExecStart=.*--http http' || fail "it is not the template of examples/"
}
of_worker() { journalctl -q -o cat -u "dripd-worker@$1" --after-cursor "$began" | grep -q -- "$2"; }

skip() {
  echo "SKIPPED: the cases of the service need $*"
  exit 77
}
command -v $cli > /dev/null && command -v $server > /dev/null || skip "a Redis or Valkey server and its command line"
command -v curl > /dev/null || skip "curl"
[ "$(systemctl --version | awk 'NR == 1 { print $2 }')" -ge 252 ] || skip "systemd 252 or later"

install -m 755 /t/dripd /usr/local/bin/dripd
install -m 644 /t/dripd.service /etc/systemd/system/$UNIT.service
rm -rf /etc/dripd /etc/credstore/redis-password
install -m 644 /t/dripd.socket /etc/systemd/system/$UNIT.socket
install -m 644 /t/dripd-worker@.service /etc/systemd/system/dripd-worker@.service
systemctl daemon-reload
outside_redis 6391 waited-for
beside quiet '[redis]' 'port = 7381' '[http]' 'listen = ""'
beside waiting '[redis]' 'url = "redis://127.0.0.1:6391"' '[http]' 'listen = ""'
systemctl stop waited-for
lost=$(show WatchdogTimestampMonotonic waiting)

for name in exposure exposure-without-network starts-with-nothing runs-as-a-dynamic-user built-in-redis-is-whole built-in-redis-may-be-in-opt \
  status-is-live reload-is-live-when-it-returns a-bad-reload-changes-nothing a-bad-configuration-is-not-retried \
  killed-it-comes-back-with-its-jobs stuck-it-is-restarted redis-may-come-late the-password-is-a-credential what-tls-needs-is-a-credential \
  the-http-token-is-a-credential the-socket-of-systemd-outlives-a-restart without-a-network-it-serves-by-unix-sockets \
  the-journal-has-fields-and-priorities a-format-that-was-asked-for-is-kept \
  workers-of-a-route-are-an-instance-of-the-template stops-cleanly a-quiet-one-lives one-that-waits-for-redis-lives; do
  case_is $name
done
exit $failed
