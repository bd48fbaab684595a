#!/bin/bash
# Boot this machine's systemd as PID 1 of a throw-away root and run a script there.
#
#   boot.sh CASES [DIR]   CASES  a bash script, run as root by that systemd; its output and exit status are ours
#                         DIR    what it finds, read-only, at /t
#
# The root is an overlay, this machine's files below and a tmpfs above, so nothing that happens there stays. Processes,
# mounts, network, host name and control groups are namespaces of their own. The script is a unit; when it ends, systemd
# exits with its status. Each link of the chain boot.sh -> timeout -> unshare -> PID 1 dies with the one before it (a
# parent-death signal), and a dead PID 1 takes its namespaces along: nothing outlives this script, killed or not.
#
# Where this cannot be done it prints "SKIPPED: why" and exits 77; 137 means that it took longer than LIMIT seconds.
set -uo pipefail

LIMIT=${LIMIT:-400} # against one that hangs: twenty seconds on a quiet machine, and a busy one needs several times that
SYSTEMD=/lib/systemd/systemd
NAMESPACES=(--mount --pid --fork --uts --ipc --net --cgroup)

skip() {
  echo "SKIPPED: systemd cannot be booted here: $*"
  exit 77
}

# Run something that this machine may not allow; its own words go into the reason.
need() {
  local said
  said=$("$@" 2>&1) || skip "$* failed: ${said//$'\n'/ }"
}

main() {
  [ $# -ge 1 ] && [ -r "$1" ] || { echo "usage: $0 CASES [DIR]" >&2; exit 2; }
  [ "$(id -u)" = 0 ] || skip "root is needed"
  [ -x "$SYSTEMD" ] || skip "there is no $SYSTEMD"
  for tool in findmnt mkfifo mount pivot_root setpriv timeout unshare; do
    command -v "$tool" > /dev/null || skip "there is no $tool"
  done
  grep -qw overlay /proc/filesystems || modprobe overlay 2> /dev/null || skip "the kernel has no overlayfs"
  local hierarchy
  hierarchy=$(findmnt -n -t cgroup2 -o TARGET | head -n 1)
  [ -n "$hierarchy" ] || skip "no cgroup2 is mounted"

  need unshare "${NAMESPACES[@]}" true
  need unshare --user true # PrivateUsers= of the unit; forbidden inside a chroot

  groups=$hierarchy$(sed -n 's/^0:://p' /proc/self/cgroup)
  groups=${groups%/}
  group=$groups/dripd-boot.$$ dir=/run/dripd-boot.$$ chain=''
  trap clean_up EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  sweep
  need mkdir "$group"
  need mkdir -m 700 "$dir"
  need mkfifo "$dir/out"
  # The way out for what is said inside: cat ends when the last writer has, and this script is one.
  cat "$dir/out" &
  local reader=$!
  exec 3> "$dir/out"
  (
    echo "$BASHPID" > "$group/cgroup.procs" || exit 1
    exec setpriv --pdeathsig KILL timeout --foreground -s KILL "$LIMIT" \
      setpriv --pdeathsig KILL unshare "${NAMESPACES[@]}" --kill-child bash "$(realpath "$0")" \
      --as-pid-1 "$dir" "$(realpath "$1")" "$(realpath "${2:-/var/empty}")"
  ) < /dev/null 3>&- &
  chain=$!
  wait "$chain"
  local status=$?
  chain=''
  exec 3>&-
  wait "$reader"
  [ $status != 137 ] || echo "not ok boot: killed after $LIMIT s, or from outside"
  exit $status
}

clean_up() {
  trap '' HUP INT TERM
  [ -z "$chain" ] || { kill -KILL "$chain"; wait "$chain"; } 2> /dev/null
  exec 3>&-
  rm -rf --one-file-system "$dir"
  for _ in {1..50}; do # the processes of a killed namespace take a moment to go
    remove_groups "$group" && break
    sleep 0.1
  done
}

remove_groups() { [ ! -d "$1" ] || find "$1" -depth -type d -exec rmdir {} + 2> /dev/null; }

# What a run that was killed with -9 leaves behind: empty control groups, and a directory with a pipe in it.
sweep() {
  local old
  for old in "$groups"/dripd-boot.* /run/dripd-boot.*; do
    [ "${old##*.}" = $$ ] || [ ! -d "/proc/${old##*.}" ] || continue
    case $old in
      /run/*) rm -rf --one-file-system "$old" ;;
      *) remove_groups "$old" ;;
    esac
  done
}

# From here on in the new namespaces, before systemd is.
as_pid_1() {
  local dir=$1 cases=$2 files=$3 root=$1/top/root node
  need mount --make-rprivate /
  mkdir "$dir/top" && need mount -t tmpfs -o mode=755 tmpfs "$dir/top"
  mkdir "$dir"/top/{upper,work,root}
  need mount -t overlay -o "lowerdir=/,upperdir=$dir/top/upper,workdir=$dir/top/work" overlay "$root"

  need mount -t proc proc "$root/proc"
  for node in sys sysrq-trigger; do # the kernel is still the machine's
    [ -e "$root/proc/$node" ] || continue
    need mount --bind "$root/proc/$node" "$root/proc/$node"
    need mount -o remount,bind,ro "$root/proc/$node"
  done
  need mount -t sysfs -o ro sysfs "$root/sys"
  need mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  need mount -t tmpfs -o mode=755 tmpfs "$root/run"
  need mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  need mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  mkdir "$root"/dev/{pts,shm}
  need mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
  need mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  for node in null zero full random urandom tty; do
    touch "$root/dev/$node" && need mount --bind "/dev/$node" "$root/dev/$node"
  done

  mkdir -p "$root/t" "$root/run/systemd/system"
  [ ! -d "$files" ] || need mount --bind -o ro "$files" "$root/t"
  touch "$root/run/out" && need mount --bind "$dir/out" "$root/run/out"
  cp "$cases" "$root/run/cases"
  cat > "$root/run/systemd/system/cases.service" << 'UNIT'
[Unit]
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
Environment=HOME=/root
ExecStart=/bin/bash /run/cases
StandardOutput=file:/run/out
StandardError=inherit
UNIT
  : > "$root/etc/fstab"
  tr -d - < /proc/sys/kernel/random/uuid > "$root/etc/machine-id"
  echo throw-away > "$root/etc/hostname"
  echo 127.0.0.1 localhost > "$root/etc/hosts"

  mkdir "$root/run/machine"
  cd "$root" && need pivot_root . run/machine && need umount -l /run/machine
  need mount --make-rshared / # as on any machine: a unit with credentials does not start without
  exec env -i container=dripd-boot PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --bounding-set=-sys_module,-sys_rawio,-sys_time,-syslog,-audit_control,-audit_read,-mac_admin \
    "$SYSTEMD" --system --unit=cases.service --show-status=0
}

case ${1-} in
  --as-pid-1) shift; as_pid_1 "$@" ;;
  *) main "$@" ;;
esac
