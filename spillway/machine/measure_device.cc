#include "spillway/machine/measure_device.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>

#include "spillway/storage/checksum.h"
#include "spillway/storage/path.h"
#include "spillway/storage/probe.h"
#include "spillway/sys/errno.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/ring.h"

namespace spillway::machine {
namespace {

constexpr Bytes kDeviceArea = 1 * GiB;
constexpr Bytes kLeastArea = 64 * MiB;
constexpr Bytes kPiece = storage::kExtentAlignment;
constexpr unsigned kDepth = 16;  // as a path's

/// Keeps reads of an area in flight, as a path would.
class Reader {
 public:
  Reader(const sys::File& device, Bytes area) : device_(device), area_(area), ring_(sys::make_ring(device, kDepth)) {}

  /// Bytes per second. Ends only when nothing is in flight any more, or by what the ring throws.
  double rate(double seconds) {
    const auto began = Clock::now();
    for (unsigned slot = 0; slot < kDepth; ++slot) submit(slot);
    std::chrono::duration<double> passed{};
    for (unsigned in_flight = kDepth; in_flight > 0;) {
      std::array<sys::Completion, kDepth> ended;
      const std::size_t count = ring_->wait(ended);
      for (const sys::Completion& completion : std::span(ended).first(count)) {
        settle(completion);
        passed = Clock::now() - began;
        passed.count() < seconds ? submit(completion.tag) : void(--in_flight);
      }
    }
    if (errno_ != 0) sys::throw_errno(errno_, "read", device_.path());
    return static_cast<double>(moved_) / passed.count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] std::span<std::byte> memory_of(std::uint64_t slot) const {
    return memory_.span().subspan(slot * kPiece, kPiece);
  }
  void submit(std::uint64_t slot) {
    const auto memory = memory_of(slot);
    ring_->submit({sys::Operation::read, memory.data(), static_cast<std::uint32_t>(memory.size()), next_, slot});
    next_ = (next_ + kPiece) % area_;
  }
  void settle(const sys::Completion& completion) {
    if (completion.result < 0 && completion.result != -EINTR && completion.result != -EAGAIN) {
      errno_ = -completion.result;
      return;
    }
    const auto moved = static_cast<Bytes>(std::max(completion.result, 0));
    sum_ ^= storage::checksum(memory_of(completion.tag).first(moved), sum_);
    moved_ += moved;
  }

  const sys::File& device_;
  const Bytes area_;
  const sys::Mapping memory_{kDepth * kPiece};
  Bytes next_ = 0;
  Bytes moved_ = 0;
  std::uint64_t sum_ = 0;
  int errno_ = 0;
  std::unique_ptr<sys::Ring> ring_;
};

}  // namespace

PathProfile measure_device(const std::filesystem::path& path, double seconds) {
  const storage::Probe found = storage::probe(path);
  const Bytes area = std::min(kDeviceArea, found.free / kPiece * kPiece);
  if (!found.direct || area < kLeastArea) return {};
  const sys::File device(path, {.direct = true});
  return {.read_bytes_per_second = Reader(device, area).rate(seconds)};
}

}  // namespace spillway::machine
