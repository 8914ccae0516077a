// Work on a device beside the same work on the host: for tests of every kind of work.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "spillway/device/typed.h"
#include "spillway/device/work.h"
#include "spillway/sys/mapping.h"
#include "tests/device/device_kinds.h"
#include "tests/needs.h"

namespace spillway::device {

inline constexpr Element kTypes[] = {Element::bf16, Element::fp16, Element::fp32};

/// Bytes of a device's memory, laid out once and then the same for the host and for a device.
class Image {
 public:
  /// Room for `count` elements; returns where.
  template <class T>
  Bytes room(std::uint64_t count) {
    const auto at = round_up(bytes_.size(), 16);
    bytes_.resize(at + count * sizeof(T), std::byte{0x5a});
    return at;
  }
  template <class T>
  Bytes put(const std::vector<T>& values) {
    const auto at = room<T>(values.size());
    std::ranges::copy(std::as_bytes(std::span(values)), bytes_.begin() + static_cast<std::ptrdiff_t>(at));
    return at;
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

template <class T>
T* at(std::byte* base, Bytes offset) {
  return reinterpret_cast<T*>(base + offset);
}

class DeviceWork : public ::testing::TestWithParam<DeviceKind> {
 protected:
  static constexpr Bytes kMemory = 8 * MiB;

  void SetUp() override {
    device_ = GetParam().make();
    const auto reason = device_->cannot_compute();
    SPILLWAY_NEEDS(gpu, reason.empty(), reason);
    device_->register_host(host_.span());
    memory_ = device_->allocate(kMemory);
    stream_ = device_->make_stream();
  }
  void TearDown() override {
    if (!memory_.empty()) device_->synchronise();
    ::unsetenv("FAKE_CUDA_REGISTERS");
  }

  /// The work as it is on memory that begins at `base`.
  using Make = std::function<Work(std::byte* base)>;

  void expect_same(const Image& image, const Make& make, const std::string& words) {
    auto expected = image.bytes();
    compute(make(expected.data()), {});
    const auto bytes = expected.size();
    ASSERT_LE(bytes, kMemory);
    std::ranges::copy(image.bytes(), host_.span().data());
    device_->copy(stream_, Direction::to_device, memory_.data(), host_.span().data(), bytes);
    device_->run(stream_, make(memory_.data()));
    device_->copy(stream_, Direction::from_device, host_.span().data(), memory_.data(), bytes);
    const auto event = device_->make_event();
    device_->record(event, stream_);
    device_->synchronise(event);
    if (bytes == 0 || std::memcmp(host_.span().data(), expected.data(), bytes) == 0) return;
    for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(host_.span().data()[i], expected[i]) << words << ", byte " << i;
  }

  std::uint32_t next() { return static_cast<std::uint32_t>(random_()); }

  /// Usual values, and every now and then one that is not.
  float value() {
    static constexpr float kOdd[] = {0.0F, -0.0F, 1e-40F, -3e-39F, 3e38F, 65519.0F, 65520.0F, 6e-8F, -1e-7F};
    if (next() % 50 == 0) return kOdd[next() % std::size(kOdd)];
    return std::ldexp(usual_[next() % usual_.size()], static_cast<int>(next() % 9) - 4);
  }
  std::vector<float> floats(std::uint64_t n) {
    std::vector<float> out(n);
    for (auto& each : out) each = value();
    return out;
  }
  /// The elements of `type`, as bytes.
  std::vector<std::byte> elements(Element type, std::uint64_t n) {
    std::vector<std::byte> out(n * traits(type).bytes);
    static_cast<void>(round_norm(type, floats(n).data(), out.data(), n));
    return out;
  }

  std::vector<float> drawn(std::size_t count) {
    std::vector<float> out(count);
    for (auto& each : out) each = std::normal_distribution<float>()(random_);
    return out;
  }

  std::mt19937_64 random_{17};
  const std::vector<float> usual_ = drawn(10007);
  const sys::Mapping host_{kMemory};
  std::unique_ptr<Device> device_;
  std::span<std::byte> memory_;
  Stream stream_ = 0;
};

}  // namespace spillway::device
