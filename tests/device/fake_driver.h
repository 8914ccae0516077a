// The fake driver (fake_cuda.cc), and how to change what it does.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "spillway/device/cuda.h"
#include "tests/device/happens_before.h"

namespace spillway::device {

inline const std::string kFakeDriver = SPILLWAY_FAKE_CUDA;

/// Sets a variable of the environment for a scope.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

/// A function of the fake driver that no real one has.
template <class Function>
Function* fake_call(const char* name) {
  static void* const library = ::dlopen(kFakeDriver.c_str(), RTLD_NOW);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

/// Calls of a kind that FAKE_CUDA_DROP may leave out (race_watch.h), since it was set.
inline int fake_calls(const std::string& kind) {
  return fake_call<int(const char*)>("fakeCudaCalls")(kind.c_str());
}
/// Whether the call that was left out stood for a copy, whose buffer the host may use after it, unseen.
inline bool fake_drop_was_for_host() {
  return fake_call<int()>("fakeCudaWasForHost")() != 0;
}
/// The first race since FAKE_CUDA_DROP was set, in words; empty: there was none.
inline std::string fake_race() {
  return fake_call<const char*()>("fakeCudaRace")();
}

/// Gives work to a stream of the fake driver, as a kernel of the caller's own. Returns the driver's answer.
inline int fake_work(CUstream_st* stream, const char* name, std::span<const fake::Range> ranges,
                     std::function<void()> work) {
  auto with = std::make_unique<std::function<void()>>(std::move(work));
  const auto run = [](void* it) {
    const std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(it));
    (*mine)();
  };
  const int result = fake_call<int(CUstream_st*, const char*, const fake::Range*, std::size_t, void (*)(void*), void*)>(
      "fakeCudaCall")(stream, name, ranges.data(), ranges.size(), run, with.get());
  if (result == 0) static_cast<void>(with.release());
  return result;
}

/// With kernels, whatever this build has: the driver knows them by name and runs them on the host.
inline std::unique_ptr<Device> make_fake_cuda() {
  static constexpr std::byte kSome[1] = {};
  return make_cuda({.library = kFakeDriver, .kernels = {.machine_code = kSome}});
}

/// With pieces of 3 MiB, of which the driver registers three.
inline std::unique_ptr<Device> limited_cuda() {
  ::setenv("FAKE_CUDA_REGISTERS_KIB", "10000", 1);
  return make_cuda({.library = kFakeDriver, .piece = 3 * MiB});
}

/// As the fixture registers its memory right after.
inline std::unique_ptr<Device> refusing_cuda() {
  ::setenv("FAKE_CUDA_REGISTERS", "0", 1);
  return make_fake_cuda();
}

}  // namespace spillway::device
