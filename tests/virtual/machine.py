"""Runs a command in a throw-away virtual machine of another kind than this one, and ends with the command's status.

    python tests/virtual/machine.py [--machine numa|cxl|nfs] [--timeout SECONDS] -- COMMAND [ARGUMENT ...]

numa: node 0 with two CPUs (768 MiB), nodes 1 and 2 with memory alone (384 MiB each), at distances 20 and 31, with
      a table of memory attributes (HMAT) of 200, 50 and 25 GB/s.
cxl:  node 0 and two emulated CXL cards of 512 MiB, brought up through the kernel's own CXL drivers as nodes 1 and 2.
      Each access to them is emulated: 6 MB/s. Small tensors only.
nfs:  one node, and a kernel with a client and a server of NFS, and with loop devices for a local drive.

The command sees this machine's files read-only, the same working directory, and TMPDIR=/dev/shm to write to. QEMU
translates every instruction (no KVM is needed): about 10 times slower, and all nodes as fast as each other, so nothing
can be timed. Status 125: none came back (a panic, out of time); 77: this system cannot start the machine, and why.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import packages
from machine_errors import CannotStart

NO_STATUS = 125
CANNOT_START = 77
BOOTS = 3  # about one boot in a hundred dies before its first process; only such a one is tried again
CPU = "max,-erms,-fsrm"  # QEMU sets memory a byte at a time for a kernel that believes in fast strings
CXL_MODULES = "nvdimm/libnvdimm cxl/cxl_acpi cxl/cxl_pci cxl/cxl_mem cxl/cxl_pmem dax/kmem dax/dax_cxl dax/device_dax"
HOST_MODULES = (
    "fs/netfs/netfs fs/fscache/fscache net/9p/9pnet net/9p/9pnet_virtio fs/9p/9p drivers/virtio/virtio_ring "
    "drivers/virtio/virtio drivers/virtio/virtio_pci drivers/virtio/virtio_pci_modern_dev "
    "drivers/virtio/virtio_pci_legacy_dev"
)

NFS_MODULES = (
    "net/sunrpc/sunrpc net/sunrpc/auth_gss/auth_rpcgss net/dns_resolver/dns_resolver fs/lockd/lockd "
    "fs/nfs_common/grace fs/nfs_common/nfs_acl fs/nfs_common/nfs_ssc fs/nfs_common/nfs_localio "
    "fs/nfs/nfs fs/nfs/nfsv4 fs/nfsd/nfsd "
    "drivers/block/loop crypto/crc32c_generic lib/libcrc32c lib/crc16 fs/mbcache fs/jbd2/jbd2 fs/ext4/ext4"
)


@dataclass(frozen=True)
class Result:
    status: int
    output: str
    seconds: float  # from the start of QEMU to its end


def numa_options() -> list[str]:
    sizes, latencies, rates = (768, 384, 384), (100, 250, 350), (200, 50, 25)
    out = ["-machine", "q35,hmat=on", "-cpu", CPU, "-m", f"{sum(sizes)}M"]
    for node, size in enumerate(sizes):
        out += ["-object", f"memory-backend-ram,id=m{node},size={size}M"]
        out += ["-numa", f"node,nodeid={node},memdev=m{node}," + ("cpus=0-1" if node == 0 else "initiator=0")]
    for first, second, distance in ((0, 1, 20), (0, 2, 31), (1, 2, 31)):
        out += ["-numa", f"dist,src={first},dst={second},val={distance}"]
    for node, (latency, rate) in enumerate(zip(latencies, rates, strict=True)):
        of = f"hmat-lb,initiator=0,target={node},hierarchy=memory"
        out += ["-numa", f"{of},data-type=access-latency,latency={latency}"]
        out += ["-numa", f"{of},data-type=access-bandwidth,bandwidth={rate}G"]
    return out


def cxl_options() -> list[str]:
    """A host bridge and a window for each card, so that each becomes a node. The kernel commits no region where the
    processor says that it is virtual."""
    machine = "q35,cxl=on"
    out = ["-cpu", f"{CPU},-hypervisor", "-m", "1024M,maxmem=16G,slots=4"]
    out += ["-object", "memory-backend-ram,id=m0,size=1024M", "-numa", "node,nodeid=0,cpus=0-1,memdev=m0"]
    for card in range(2):
        out += ["-object", f"memory-backend-ram,id=x{card},size=512M,share=on"]
        out += ["-device", f"pxb-cxl,bus_nr={12 + 100 * card},bus=pcie.0,id=hb{card}"]
        out += ["-device", f"cxl-rp,port=0,bus=hb{card},id=rp{card},chassis={card},slot=2"]
        out += ["-device", f"cxl-type3,bus=rp{card},volatile-memdev=x{card},id=d{card},sn={card + 1}"]
        machine += f",cxl-fmw.{card}.targets.0=hb{card},cxl-fmw.{card}.size=1G"
    return [*out, "-machine", machine]


def nfs_options() -> list[str]:
    return ["-machine", "q35", "-cpu", CPU, "-m", "2048M"]


OPTIONS = {"numa": numa_options, "cxl": cxl_options, "nfs": nfs_options}


def take_module(kernel: Path, name: str, to: Path) -> None:
    """A module that the kernel has built in has no file."""
    for file in kernel.glob(f"lib/modules/*/kernel/{name}.ko*"):
        target = to / (file.name.split(".ko")[0] + ".ko")
        target.write_bytes(lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes())


def initial_files(kernel: Path, machine: str, command: list[str], work: Path) -> Path:
    """The first file system: busybox, the modules, what to run."""
    root = work / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy(packages.busybox(), root / "bin" / "busybox")
    shutil.copy(Path(__file__).parent / "init.sh", root / "init")
    (root / "init").chmod(0o755)
    here, words = shlex.quote(str(Path.cwd())), shlex.join(command)
    (root / "command").write_text(f"cd {here} && TMPDIR=/dev/shm SPILLWAY_MACHINE={machine} exec {words}")
    version = next((kernel / "lib/modules").iterdir()).name
    modules = root / "lib/modules" / version
    modules.mkdir(parents=True)
    for name in [*HOST_MODULES.split(), *(NFS_MODULES.split() if machine == "nfs" else ())]:
        take_module(kernel, name, modules)
    if machine == "cxl":
        (root / "modules").mkdir()
        for name in CXL_MODULES.split():
            take_module(kernel, f"drivers/{name}", root / "modules")
    listing = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout
    archive = subprocess.run(
        [packages.busybox(), "cpio", "-o", "-H", "newc"], cwd=root, input=listing, capture_output=True, check=True
    ).stdout
    packed = work / "initrd.gz"
    packed.write_bytes(gzip.compress(archive, compresslevel=1))
    return packed


def boot(command: list[str], machine: str = "numa", timeout: float = 120, show: bool = False) -> Result:
    """Throws CannotStart where this system cannot."""
    kernel = packages.kernel()
    qemu = packages.qemu(cxl=machine == "cxl")
    image = next((kernel / "boot").glob("vmlinuz-*"))
    with tempfile.TemporaryDirectory() as work:
        files = initial_files(kernel, machine, command, Path(work))
        words = [*qemu, *OPTIONS[machine](), "-accel", "tcg,thread=multi", "-smp", "2"]
        words += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        words += ["-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-chardev", "stdio,id=c0,signal=off"]
        words += ["-serial", "chardev:c0", "-kernel", str(image), "-initrd", str(files)]
        words += ["-append", "console=ttyS0 quiet panic=-1"]
        words += ["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]
        words += ["-device", "virtio-9p-pci,fsdev=host,mount_tag=host,bus=pcie.0"]
        for _ in range(BOOTS):
            result = run(words, timeout, show)
            if "@init" in result.output or "qemu-system" in result.output:
                break
        return result


def run(words: list[str], timeout: float, show: bool) -> Result:
    began = time.monotonic()
    lines: list[str] = []
    guarded = ["timeout", "-k", "5", str(timeout), *words]
    process = subprocess.Popen(guarded, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.decode(errors="replace").replace("\r", ""))
        if show and not re.match(r"@|\[ *\d+\.\d+\] ", lines[-1]):
            print(lines[-1], end="", flush=True)
    return Result(status_of(process.wait(), "".join(lines)), "".join(lines), time.monotonic() - began)


def status_of(qemu: int, output: str) -> int:
    """The command's, when the machine and QEMU agree on it: a reboot, an error of QEMU's or its end by the clock look
    like no status."""
    done = re.search(r"^@done (\d+)$", output, re.MULTILINE)
    said = min(int(done[1]), 120) if done else None
    return said if said is not None and qemu == 2 * (said + 1) + 1 else NO_STATUS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", choices=sorted(OPTIONS), default="numa")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    try:
        result = boot(arguments.command, arguments.machine, arguments.timeout, show=True)
    except CannotStart as error:
        print(f"the virtual machine cannot be started here: {error}", file=sys.stderr)
        return CANNOT_START
    print(f"{arguments.machine} machine: status {result.status} after {result.seconds:.1f} s", file=sys.stderr)
    return result.status


if __name__ == "__main__":
    sys.exit(main())
