#!/bin/sh
# The path engine beside fio on the same file system, in alternating pairs; medians and their ratio.
#
#   bench/storage_vs_fio.sh PROGRAM DIR [PAIRS] [SECONDS] [GIB]
#
# PROGRAM is the built storage_path. fio: io_uring, O_DIRECT, 1 MiB blocks, 16 in flight, registered buffers and file, a
# file of the same size; no checksums. Spillway: 8 MiB transfers, checksums on. Both write their whole file right before
# each figure, so that caches below the file system are equally warm. Needs GIB x 2 of space. Large requests are served
# faster from huge pages, which Spillway's buffers are on; fio's are, too, where 32 are reserved
# (echo 64 > /proc/sys/vm/nr_hugepages); without them fio gets half of some drives, and the ratio says little.
set -eu
program=${1:?storage_path program} dir=${2:?directory} pairs=${3:-5} seconds=${4:-2} gib=${5:-6}
command -v fio >/dev/null || { echo "fio is not installed: apt-get install fio" >&2; exit 2; }

work=$(mktemp -d "$dir/storage_vs_fio.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM

memory=malloc
[ "$(cat /proc/sys/vm/nr_hugepages)" -lt 32 ] || memory=mmaphuge

fio_run() {
  fio --name=x --filename="$work/fio" --size="${gib}G" --bs=1M --iodepth=16 --ioengine=io_uring --direct=1 \
    --fixedbufs=1 --registerfiles=1 --iomem="$memory" --output-format=terse --terse-version=3 "$@"
}

fio_gbs() { # pattern: GB/s of both directions together
  case $1 in mixed) rw="--rw=rw --rwmixread=50" ;; *) rw="--rw=$1" ;; esac
  fio_run --rw=write >/dev/null
  # shellcheck disable=SC2086
  fio_run $rw --time_based --runtime="$seconds" |
    awk -F';' '{ printf "%.3f", ($7 + $48) * 1024 / 1e9 }'
}

path_gbs() {
  "$program" "$work" --pattern "$1" --gib "$gib" --mib 8 --seconds "$seconds" |
    awk -v p="$1" '$1 == p { printf "%.3f", $5 + $8 }'
}

for pattern in read write mixed; do
  pair=0
  while [ "$pair" -lt "$pairs" ]; do
    echo "$pattern $(fio_gbs $pattern) $(path_gbs $pattern)"
    pair=$((pair + 1))
  done
done | tee "$work/pairs" >&2

echo "pattern  fio GB/s  spillway GB/s  ratio (median of pairs)"
for pattern in read write mixed; do
  awk -v p="$pattern" '
    function median(list, n,   i, j, t) {
      for (i = 2; i <= n; i++) for (j = i; j > 1 && list[j] < list[j-1]; j--) { t = list[j]; list[j] = list[j-1]; list[j-1] = t }
      return n % 2 ? list[(n+1)/2] : (list[n/2] + list[n/2+1]) / 2
    }
    $1 == p { n++; fio[n] = $2; path[n] = $3; ratio[n] = $3 / $2 }
    END { printf "%-8s %8.2f  %13.2f  %5.2f\n", p, median(fio, n), median(path, n), median(ratio, n) }' "$work/pairs"
done
