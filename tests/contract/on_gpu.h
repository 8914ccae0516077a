// Runs on the `cuda` device over the fake driver, whose caller works in a stream as PyTorch does: behind the host, in
// memory of the GPU that is used again without a wait. The driver knows what each pass reads and writes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/outcome.h"
#include "tests/contract/toy.h"
#include "tests/device/fake_driver.h"

namespace spillway::test {

/// The caller's side of the fake GPU: memory there, and a stream to work in.
class Caller {
 public:
  explicit Caller(bool own_stream) {
    driver_.check(driver_.calls().retain_context(&context_, 0), "cuDevicePrimaryCtxRetain");
    call([&] { return own_stream ? driver_.calls().create_stream(&stream_, device::kCudaStreamNonBlocking) : 0; });
  }
  ~Caller() {
    settle();
    for (const auto& [bytes, at] : free_) call([&] { return driver_.calls().free(at); });
    if (stream_ != nullptr) call([&] { return driver_.calls().destroy_stream(stream_); });
    static_cast<void>(driver_.calls().release_context(0));
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  [[nodiscard]] CUstream_st* stream() const { return stream_; }

  /// What was given to the stream has ended.
  void settle() {
    call([&] { return driver_.calls().synchronise_stream(stream_); });
  }

  /// Gives work to the stream. Throws Error(io) as an operation of the engine does.
  void run(std::span<const device::fake::Range> ranges, std::function<void()> work) {
    driver_.check(device::fake_work(stream_, "a pass", ranges, std::move(work)), "a pass");
  }

  /// Numbers on the GPU. They are anybody's again when the last owner is gone, in the order of the stream.
  std::shared_ptr<std::uint16_t[]> memory(std::size_t count) {
    const auto bytes = count * sizeof(std::uint16_t);
    const auto at = take(bytes);
    return {reinterpret_cast<std::uint16_t*>(static_cast<std::uintptr_t>(at)), [this, bytes, at](std::uint16_t*) {
              const std::lock_guard lock(mutex_);
              free_.emplace(bytes, at);
            }};
  }

 private:
  unsigned long long take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    unsigned long long at = 0;
    if (const auto known = free_.find(bytes); known != free_.end()) {
      at = known->second;
      free_.erase(known);
    } else {
      call([&] { return driver_.calls().allocate(&at, bytes); });
    }
    return at;
  }

  template <class Call>
  void call(const Call& it) {
    CUctx_st* mine = nullptr;
    driver_.check(driver_.calls().push_context(context_), "cuCtxPushCurrent");
    driver_.check(it(), "a call of the test");
    driver_.check(driver_.calls().pop_context(&mine), "cuCtxPopCurrent");
  }

  const device::CudaDriver driver_{device::kFakeDriver};
  CUctx_st* context_ = nullptr;
  CUstream_st* stream_ = nullptr;
  std::mutex mutex_;  ///< guards what follows; the last owner may be the stream's thread
  std::multimap<std::size_t, unsigned long long> free_;  ///< addresses by bytes
};

/// The memory of the engine that a pass of the toy reads and writes.
inline std::vector<device::fake::Range> ranges_of(const BlockPass& pass, const Engine& engine,
                                                  const plan::Description& description) {
  const auto& block = engine.layout().blocks()[pass.block];
  const Bytes element = description.computes() == state::ComputeType::fp32 ? 4 : 2;
  const Bytes hidden = description.tokens * description.hidden_size * element;
  const Bytes sums = description.tokens * description.hidden_size * sizeof(float);
  Bytes weights = pass.rows * block.columns * element;
  for (auto t = block.first_tensor; pass.rows == 0 && t < block.first_tensor + block.tensors; ++t) {
    const auto& tensor = engine.layout().tensors()[t];
    const Bytes each = tensor.spec.form == state::Form::fp32 ? 4 : element;
    weights = std::max(weights, engine.tensor_offset(t) * element + tensor.elements * each);
  }
  const bool forward = pass.kind == plan::PassKind::forward, backward = pass.kind == plan::PassKind::backward;
  const bool head_gradient = pass.kind == plan::PassKind::head_gradient;
  const bool fills_input = forward && pass.block == 0;  // of a model without an embedding
  std::vector<device::fake::Range> out;
  const auto add = [&](const void* at, Bytes bytes, bool writes) {
    if (at != nullptr) out.push_back({at, bytes, writes});
  };
  add(pass.weights, weights, false);
  add(pass.input, hidden, fills_input);
  add(pass.output, hidden, forward);
  if (backward) add(pass.hidden_gradient, hidden, true);
  if (backward || head_gradient) add(pass.accumulator, sums, head_gradient);
  add(pass.spilled, sums, forward);
  add(pass.features, sums, forward);
  return out;
}

inline Settings on_gpu(const Caller& caller) {
  static constexpr std::byte kSomeKernels[1] = {};
  auto out = everything_in_dram();
  out.budget.device = plan::DeviceTier{.capacity = 48 * MiB};
  out.device.name = "cuda:1";
  out.device.stream = caller.stream();
  out.device.cuda = {.library = device::kFakeDriver, .kernels = {.machine_code = kSomeKernels}};
  return out;
}

/// `caller` null: on the host. `notice`: is what the device has to say.
inline Outcome train_on_gpu(const plan::Description& description, const Settings& settings, int steps, Caller* caller,
                            std::string* notice = nullptr) {
  Engine engine(description, settings);
  engine.start();
  Toy toy(engine, description, description.micro_batches);
  const auto settle = [](Caller* it) { it->settle(); };
  const std::unique_ptr<Caller, decltype(settle)> settled(caller);  // before the toy is gone
  std::vector<device::fake::Range> ranges;
  if (caller != nullptr) {
    toy.look = [&](const BlockPass& pass) { ranges = ranges_of(pass, engine, description); };
    toy.compute = [&ranges, caller](std::function<void()> work) { caller->run(ranges, std::move(work)); };
    toy.memory = [caller](std::size_t count) { return caller->memory(count); };
  }
  toy.fill();
  Outcome out;
  for (int s = 0; s < steps; ++s) {
    out.norms.push_back(toy.step(static_cast<std::uint64_t>(s)).grad_norm);
    if (s % 3 == 2) toy.step(1000 + static_cast<std::uint64_t>(s), false);
  }
  out.masters = toy.masters();
  if (notice != nullptr) *notice = engine.counters().device.value().notice;
  return out;
}

}  // namespace spillway::test
