// A block device over a file, for tests that are run by root.
#pragma once

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "spillway/base/bytes.h"
#include "tests/needs.h"

namespace spillway::testing {

/// Made of zeros; detached by the destructor. `ready()` is false, with the reason, where this machine gives none.
class LoopDevice {
 public:
  LoopDevice(const std::filesystem::path& directory, Bytes bytes, unsigned sector = 512) {
    backing_ = directory / "loop.img";
    std::ofstream(backing_).close();
    std::filesystem::resize_file(backing_, bytes);
    const int control = ::open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) {
      fail("open /dev/loop-control");
      return;
    }
    const int file = ::open(backing_.c_str(), O_RDWR | O_CLOEXEC);
    for (int attempt = 0; attempt < 20 && fd_ < 0; ++attempt) attach(control, file, sector);
    ::close(file);
    ::close(control);
  }
  ~LoopDevice() {
    if (fd_ < 0) return;
    ::ioctl(fd_, LOOP_CLR_FD, 0);
    ::close(fd_);
  }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;

  [[nodiscard]] bool ready() const noexcept { return fd_ >= 0; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Makes it larger; false when that is not possible.
  [[nodiscard]] bool resize(Bytes bytes) const {
    std::filesystem::resize_file(backing_, bytes);
    return ::ioctl(fd_, LOOP_SET_CAPACITY, 0) == 0;
  }

 private:
  /// Another process may take the free one first.
  void attach(int control, int file, unsigned sector) {
    const int number = ::ioctl(control, LOOP_CTL_GET_FREE);
    if (number < 0) return fail("find a free loop device");
    path_ = "/dev/loop" + std::to_string(number);
    const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return fail("open " + path_.string());
    loop_config config{};
    config.fd = static_cast<unsigned>(file);
    config.block_size = sector;
    config.info.lo_flags = LO_FLAGS_DIRECT_IO | LO_FLAGS_PARTSCAN;
    if (::ioctl(fd, LOOP_CONFIGURE, &config) == 0) {
      fd_ = fd;
      return;
    }
    fail("configure " + path_.string());
    ::close(fd);
  }
  void fail(const std::string& what) { reason_ = "cannot " + what + ": " + std::strerror(errno) + " (root may)"; }

  std::filesystem::path backing_;
  std::filesystem::path path_;
  std::string reason_;
  int fd_ = -1;
};

}  // namespace spillway::testing

/// Skips the test, with the reason, where there are no loop devices.
#define REQUIRE_LOOP_DEVICE(device) SPILLWAY_NEEDS(loop, (device).ready(), (device).reason())
