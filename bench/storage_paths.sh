#!/bin/bash
# Do bandwidths add, and is a path that slows down relieved? Paths of known speeds, through the pool.
#
#   bench/storage_paths.sh PROGRAM [MB/S...]      default: 400 400 200
#
# PROGRAM is the built storage_pool. Each path is a loop device over memory with ext4 on it and a limit on its bytes per
# second, each direction for itself (a blkio group of cgroup v1). First every pattern for some seconds: the share of the
# sum of the limits. Then objects are updated (read, and written anew) while the first path is cut to a quarter, and later
# given back: the share of the new optimum, per second, and in steps (every object updated once). Needs root, losetup,
# mkfs.ext4 and 512 MiB of memory per path; leaves nothing behind.
set -euo pipefail
program=${1:?storage_pool program}
shift
rates=("$@")
[ $# -gt 0 ] || rates=(400 400 200)
mib=512 fill=0.6 phase=14

[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 2; }
blkio=$(awk '$3 == "cgroup" && $4 ~ /(^|,)blkio(,|$)/ { print $2; exit }' /proc/mounts)
[ -n "$blkio" ] || { echo "no blkio controller of cgroup v1 is mounted" >&2; exit 2; }

work=$(mktemp -d) images=$(mktemp -d /dev/shm/storage_paths.XXXXXX)
group=$blkio$(awk -F: '$2 == "blkio" { print $3 == "/" ? "" : $3 }' /proc/self/cgroup)/storage_paths.$$
loops=() directories=()

unmount() { # the kernel lets go of a program's rings a moment after its end
  for _ in $(seq 100); do
    umount "$1" 2>/dev/null && return
    sleep 0.1
  done
  echo "cannot unmount $1" >&2
}

clean() {
  trap - EXIT
  for i in "${!loops[@]}"; do
    mountpoint -q "${directories[$i]}" && unmount "${directories[$i]}"
    losetup -d "${loops[$i]}" || true
  done
  rm -rf "$images" "$work" || true
  rmdir "$group"
}
trap clean EXIT
trap 'exit 1' INT TERM

limit() { # PATH MB/S
  local device
  device=$(cat "/sys/block/${loops[$1]##*/}/dev")
  echo "$device $(($2 * 1000000))" >"$group/blkio.throttle.read_bps_device"
  echo "$device $(($2 * 1000000))" >"$group/blkio.throttle.write_bps_device"
}

limited() { # a command under the limits
  (echo "$BASHPID" >"$group/cgroup.procs" && exec "$@")
}

mkdir "$group"
for i in "${!rates[@]}"; do
  image=$images/$i directory=$work/$i
  fallocate -l $((mib + 64))M "$image"
  loops+=("$(losetup --find --show --direct-io=on "$image")")
  directories+=("$directory")
  mkfs.ext4 -q -m 0 -O ^has_journal -E lazy_itable_init=0,nodiscard "${loops[$i]}"
  mkdir "$directory"
  mount -o noatime "${loops[$i]}" "$directory"
  limit "$i" "${rates[$i]}"
done

sum=0
for rate in "${rates[@]}"; do sum=$((sum + rate)); done
run=(limited "$program" "${directories[@]}" --mib-volume "$mib" --fill "$fill")

echo "limits: ${rates[*]} MB/s, $sum in sum, each direction"
"${run[@]}" --seconds 4 | awk -v sum="$sum" '
  /^note/ { print; next }
  { printf "%-8s read %5.1f %%  write %5.1f %% of the sum;  %s\n", $1, $3 * 1e5 / sum, $6 * 1e5 / sum,
      substr($0, index($0, "cpu")) }'

cut=$((rates[0] / 4))
echo "updates; path 0 is cut to $cut MB/s after $phase s, and given back after $((2 * phase)) s"
mkfifo "$work/lines"
"${run[@]}" --pattern update --seconds $((3 * phase)) --every 1 --streams 16 >"$work/lines" &
second=0
while read -r line; do
  case $line in update*) ;; *) continue ;; esac
  [ $((second / phase)) = 1 ] && optimum=$((sum - rates[0] + cut)) || optimum=$sum
  second=$((second + 1))
  [ $second = $phase ] && limit 0 "$cut"
  [ $second = $((2 * phase)) ] && limit 0 "${rates[0]}"
  echo "$second $optimum $line"
done <"$work/lines" | awk -v objects="$(echo "${#rates[@]} $mib $fill" | awk '{ print $1 * $2 * $3 * 1.048576 }')" '
  $2 != optimum { steps = 0 }
  { optimum = $2; steps += $8 * 1000 / objects
    printf "%3d s  optimum %4d MB/s  read %5.1f %%  write %5.1f %%  %5.2f steps at this speed  %s\n", $1, $2,
      $5 * 1e5 / $2, $8 * 1e5 / $2, steps, substr($0, index($0, "paths"))
    if (steps > 5) { settled[$2] += $8 * 1000; seconds[$2]++ } }
  END { for (o in settled) {
    printf "after 5 steps, optimum %4d MB/s: %.1f %% in the mean\n", o, 100 * settled[o] / seconds[o] / o } }'
wait
