// A simulated device that keeps the kinds of work that it was given.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "spillway/device/simulated.h"
#include "spillway/sys/mapping.h"

namespace spillway::execute::test {

class WatchedDevice final : public device::Device {
 public:
  explicit WatchedDevice(const device::SimulatedOptions& options) : device_(device::make_simulated(options)) {}
  ~WatchedDevice() override { end_staging(); }

  /// Host code in the order of a stream, as a kernel of PyTorch would run.
  void call(device::Stream stream, std::function<void()> work) { device_->call(stream, std::move(work)); }
  [[nodiscard]] const std::vector<device::Sum>& sums() const noexcept { return sums_; }

  [[nodiscard]] std::string name() const override { return "watched"; }
  [[nodiscard]] bool separate() const noexcept override { return true; }
  [[nodiscard]] bool host_reads() const noexcept override { return true; }
  [[nodiscard]] device::Stream make_stream() override { return device_->make_stream(); }
  [[nodiscard]] device::Stream adopt_stream(void* native) override { return device_->adopt_stream(native); }
  [[nodiscard]] device::Event make_event() override { return device_->make_event(); }
  [[nodiscard]] device::Event make_timed_event() override { return device_->make_timed_event(); }
  void run(device::Stream stream, const device::Work& work) override {
    if (const auto* const sum = std::get_if<device::Sum>(&work)) sums_.push_back(*sum);
    device_->run(stream, work);
  }
  void fill(device::Stream stream, std::byte* to, std::uint8_t value, Bytes bytes) override {
    device_->fill(stream, to, value, bytes);
  }
  void do_record(device::Event event, device::Stream stream) override { device_->record(event, stream); }
  void do_wait(device::Stream stream, device::Event event) override { device_->wait(stream, event); }
  [[nodiscard]] bool do_done(device::Event event) override { return device_->done(event); }
  void do_synchronise(device::Event event) override { device_->synchronise(event); }
  void do_synchronise() override { device_->synchronise(); }
  [[nodiscard]] double seconds_between(device::Event first, device::Event last) override {
    return device_->seconds_between(first, last);
  }

 protected:
  [[nodiscard]] std::span<std::byte> do_allocate(Bytes bytes) override { return device_->allocate(bytes); }
  [[nodiscard]] std::string do_register(std::span<std::byte> range) override {
    return device_->register_host(range) ? "" : device_->notice();
  }
  void do_unregister(std::span<std::byte> range) noexcept override { device_->unregister_host(range); }
  [[nodiscard]] std::span<std::byte> staging_memory(Bytes bytes) override {
    return staging_.emplace_back(std::make_unique<sys::Mapping>(bytes))->span();
  }
  void issue(device::Stream stream, device::Direction direction, std::byte* to, const std::byte* from,
             Bytes bytes) override {
    device_->copy(stream, direction, to, from, bytes);
  }

 private:
  const std::unique_ptr<device::Simulated> device_;
  std::vector<device::Sum> sums_;
  std::vector<std::unique_ptr<sys::Mapping>> staging_;
};

}  // namespace spillway::execute::test
