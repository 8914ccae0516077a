#include <cstring>

#include "spillway/device/device.h"
#include "spillway/sys/mapping.h"

namespace spillway::device {
namespace {

/// Everything happens at once, in the calling thread.
class Cpu final : public Device {
 public:
  [[nodiscard]] std::string name() const override { return "cpu"; }
  [[nodiscard]] bool separate() const noexcept override { return false; }
  [[nodiscard]] bool host_reads() const noexcept override { return true; }
  [[nodiscard]] Stream make_stream() override { return 0; }
  [[nodiscard]] Stream adopt_stream(void*) override { return 0; }
  [[nodiscard]] Event make_event() override { return 0; }
  [[nodiscard]] Event make_timed_event() override { return 0; }
  void run(Stream, const Work& work) override { compute(work, parallel_for()); }
  void fill(Stream, std::byte* to, std::uint8_t value, Bytes bytes) override { std::memset(to, value, bytes); }
  void do_record(Event, Stream) override {}
  void do_wait(Stream, Event) override {}
  [[nodiscard]] bool do_done(Event) override { return true; }
  void do_synchronise(Event) override {}
  [[nodiscard]] double seconds_between(Event, Event) override { return 0; }
  void do_synchronise() override {}

 private:
  std::span<std::byte> do_allocate(Bytes bytes) override {
    mapping_ = std::make_unique<sys::Mapping>(bytes);
    return mapping_->span();
  }
  std::string do_register(std::span<std::byte>) override { return {}; }
  void do_unregister(std::span<std::byte>) noexcept override {}
  std::span<std::byte> staging_memory(Bytes) override { return {}; }
  void issue(Stream, Direction, std::byte* to, const std::byte* from, Bytes bytes) override {
    if (to != from) std::memmove(to, from, bytes);
  }

  std::unique_ptr<sys::Mapping> mapping_;
};

}  // namespace

std::unique_ptr<Device> make_cpu() {
  return std::make_unique<Cpu>();
}

}  // namespace spillway::device
