#!/bin/busybox sh
# The first process of the virtual machine: brings CXL memory up where there is some, shows the host's files read-only
# at /h, runs /command in there, and gives its status to QEMU. Lines that begin with @ are for machine.py.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root
mkdir -p /proc /sys /dev /h
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
echo "@init"

# A region of its own for each card: a card is reached only through the window of its own host bridge, so the windows
# are tried in turn.
cxl_region() {
  size=$(cat "$1/ram/size")
  for endpoint in endpoint*; do
    [ "$(basename "$(readlink -f $endpoint/uport)")" = "$1" ] && break
  done
  decoder=$(basename "$(ls -d $endpoint/decoder*.0)")
  echo ram >$decoder/mode && echo $size >$decoder/dpa_size || return 1
  for window in decoder0.*; do
    region=$(cat $window/create_ram_region)
    echo $region >$window/create_ram_region
    echo 256 >$region/interleave_granularity
    echo 1 >$region/interleave_ways
    if echo $size >$region/size && echo $decoder >$region/target0 && echo 1 >$region/commit; then
      echo $region >/sys/bus/cxl/drivers/cxl_region/bind
      return 0
    fi 2>/dev/null
    echo $region >$window/delete_region
  done
  return 1
}

cxl_memory() {
  for module in libnvdimm cxl_acpi cxl_pci cxl_mem cxl_pmem kmem dax_cxl device_dax; do
    insmod /modules/$module.ko || echo "@no module $module"
  done
  cd /sys/bus/cxl/devices
  tries=0
  while [ "$(ls -d endpoint* 2>/dev/null | wc -l)" -lt 2 ] && [ $tries -lt 50 ]; do
    sleep 0.1
    tries=$((tries + 1))
  done
  sleep 0.3
  for card in mem*; do
    cxl_region "$card" || echo "@no region for $card"
  done
  sleep 0.5
  for state in /sys/devices/system/memory/memory*/state; do
    [ "$(cat $state)" = offline ] && echo online_movable >$state
  done
  cd /
}
[ -e /modules/cxl_acpi.ko ] && cxl_memory

depmod 2>/dev/null
# Modules that the machine was not given are of another kind of machine, or part of the kernel.
for module in virtio_pci 9pnet_virtio 9p nfsv4 nfsd loop crc32c_generic ext4; do modprobe $module 2>/dev/null; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=1048576 host /h || echo "@no files of the host"
mount -t proc proc /h/proc
mount -t sysfs sysfs /h/sys
mount --bind /dev /h/dev
mkdir -p /h/dev/shm
mount -t tmpfs shm /h/dev/shm

echo "@nodes $(cat /sys/devices/system/node/has_memory)"
chroot /h /bin/sh -c "$(cat /command)"
status=$?
echo "@done $status"
[ $status -gt 120 ] && status=120
# isa-debug-exit: QEMU ends with twice the byte, and one.
printf "\\$(printf '%03o' $((status + 1)))" | dd of=/dev/port bs=1 seek=244 2>/dev/null
poweroff -f
