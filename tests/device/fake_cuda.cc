// A CUDA driver made of host memory, to run the `cuda` device where no GPU is: a shared library with the driver's
// names.
//
// It refuses what a driver refuses: calls without a context, addresses outside of what was allocated, handles that are
// not there, kernels that are newer than it. How old it is, how many GPUs it has, how much memory, how much of the
// host's memory may be registered, which copy fails and which takes how long comes from the environment. It ends the
// process where a GPU would go on with what is somebody else's by then: memory that is freed or unregistered while a
// copy is under way to or from it. And where two operations touch the same bytes without an order (race_watch.h),
// whatever the timing was: copies, kernels, fills and the caller's own work (fakeCudaCall), and the host where it
// frees, unregisters, lends or takes back memory.
//
// Where PyTorch plays along on the host (tests/python/machine/fake_gpu.py) its tensors are not allocated here; they are
// lent (fakeCudaLend) while a call uses them, so that all other addresses are still refused.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "spillway/device/cuda_driver.h"
#include "spillway/device/simulated.h"
#include "spillway/sys/mapping.h"
#include "tests/device/fake_kernels.h"
#include "tests/device/race_watch.h"
#include "tests/device/staging_guard.h"

namespace {

using spillway::device::Event;
using spillway::device::Stream;
using spillway::device::fake::HappensBefore;
using spillway::device::fake::Participant;
using spillway::device::fake::RaceWatch;
using spillway::device::fake::Range;
using spillway::device::fake::StagingGuard;
using spillway::device::fake::VectorClock;

constexpr int kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400, kAlreadyRegistered = 712, kNoBinary = 209,
              kUnsupportedPtx = 222, kNotFound = 500, kLaunchFailed = 719, kRace = 9999;

int setting(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

std::size_t capacity() {
  return static_cast<std::size_t>(setting("FAKE_CUDA_MIB", 64)) << 20;
}

constexpr int kNewest = 13000;  ///< whose machine code nvcc makes

/// 13000 is CUDA 13.0.
int version() {
  return setting("FAKE_CUDA_VERSION", kNewest);
}

/// The text of an image that is PTX; empty: it is machine code.
std::string_view ptx_of(const void* image) {
  const auto* words = static_cast<const char*>(image);
  return std::strncmp(words, "//", 2) == 0 ? words : std::string_view();
}

/// Of the CUDA that a text was the newest for: ISA 7.4 came with CUDA 11.4, 8.2 with 12.2, 9.0 with 13.0.
int ptx_version(std::string_view ptx) {
  const auto at = ptx.find("\n.version ");
  int major = 0, minor = 0;
  if (at == std::string_view::npos || std::sscanf(ptx.data() + at, "\n.version %d.%d", &major, &minor) != 2)
    return 1 << 30;
  return (major + 4) * 1000 + minor * 10;
}

struct FakeStream {
  Stream simulated = 0;
  Participant participant = 0;
};

struct FakeEvent {
  Event simulated = 0;
  VectorClock reached;  ///< what it was recorded after; the watch's mutex guards it
};

struct Driver {
  RaceWatch watch;
  StagingGuard guard;  ///< the watch's mutex guards it
  std::mutex mutex;    ///< guards what follows; taken after the watch's
  std::unique_ptr<spillway::device::Simulated> simulated = spillway::device::make_simulated({.seed = 11});
  std::map<CUstream_st*, FakeStream> streams;
  std::vector<FakeStream> idle_streams;  ///< destroyed ones, whose threads serve the next
  std::map<CUevent_st*, FakeEvent> events;
  std::map<CUevent_st*, bool> timed;  ///< whether it has been recorded
  std::map<unsigned long long, std::unique_ptr<spillway::sys::Mapping>> memory;
  std::multimap<unsigned long long, std::size_t> lent;  ///< the caller's memory that counts as a GPU's for now
  std::map<char*, std::size_t> host;                    ///< that copies may use: registered, or allocated for it
  std::map<char*, std::size_t> registered;              ///< of these
  std::map<const char*, std::size_t> under_way;         ///< where copies read and write, each once
  std::uintptr_t next = 0x1000;
  int retained = 0;
  int copies = 0;  ///< since one was asked to fail or to take long
};

Driver& driver() {
  static Driver it;
  return it;
}

/// A touch of staging memory that is closed; every other fault is for whoever handled it before.
struct sigaction before;
void see_fault(int signal, siginfo_t* fault, void*) {
  auto& it = driver();
  const std::lock_guard lock(it.watch.mutex);
  if (const auto race = it.guard.touch(fault->si_addr); !race.empty()) return it.watch.report(race);
  ::sigaction(signal, &before, nullptr);
}

/// Threads of the engine block all signals: a fault in one would end the process without a word.
void see_faults() {
  static const bool once = [] {
    struct sigaction action {};
    action.sa_sigaction = see_fault;
    action.sa_flags = SA_SIGINFO;
    return ::sigaction(SIGSEGV, &action, &before) == 0;
  }();
  thread_local const bool here = [] {
    sigset_t faults;
    ::sigemptyset(&faults);
    ::sigaddset(&faults, SIGSEGV);
    return ::pthread_sigmask(SIG_UNBLOCK, &faults, nullptr) == 0;
  }();
  static_cast<void>(once && here);
}

thread_local std::vector<CUctx_st*> contexts;
CUctx_st* const kContext = reinterpret_cast<CUctx_st*>(0x77);

bool current() {
  return !contexts.empty() && contexts.back() == kContext;
}

bool on_device(unsigned long long at, std::size_t bytes) {
  auto& it = driver();
  const std::lock_guard lock(it.mutex);
  const auto inside = [&](unsigned long long first, std::size_t count) {
    return at >= first && at + bytes <= first + count;
  };
  return std::ranges::any_of(it.memory,
                             [&](const auto& own) { return inside(own.first, own.second->span().size()); }) ||
         std::ranges::any_of(it.lent, [&](const auto& lent) { return inside(lent.first, lent.second); });
}

/// Copies of memory that is not registered are not asynchronous: the device is not to make them.
bool registered(const void* at, std::size_t bytes) {
  auto& it = driver();
  const std::lock_guard lock(it.mutex);
  return std::ranges::any_of(it.host, [&](const auto& range) {
    const auto* first = static_cast<const char*>(at);
    return first >= range.first && first + bytes <= range.first + range.second;
  });
}

/// The watch's mutex and the driver's are held.
FakeStream make_stream() {
  auto& it = driver();
  if (!it.idle_streams.empty()) {
    const auto out = it.idle_streams.back();
    it.idle_streams.pop_back();
    return out;
  }
  return {.simulated = it.simulated->make_stream(), .participant = it.watch.order.add_stream()};
}

/// The default stream is made when it is first used. Null: there is none of that handle. The watch's mutex is held.
const FakeStream* stream_of(CUstream_st* stream) {
  auto& it = driver();
  const std::lock_guard lock(it.mutex);
  if (stream == nullptr && !it.streams.contains(nullptr)) it.streams[nullptr] = make_stream();
  const auto found = it.streams.find(stream);
  return found == it.streams.end() ? nullptr : &found->second;
}

FakeEvent* event_of(CUevent_st* event) {
  auto& it = driver();
  const std::lock_guard lock(it.mutex);
  const auto found = it.events.find(event);
  return found == it.events.end() ? nullptr : &found->second;
}

/// Gives an operation to a stream.
int submit(CUstream_st* stream, const std::string& name, const std::vector<Range>& ranges, std::function<void()> work) {
  auto& it = driver();
  const std::lock_guard lock(it.watch.mutex);
  const auto* in = stream_of(stream);
  if (in == nullptr) return kInvalidHandle;
  const auto count = it.watch.order.count(in->participant);
  if (!it.watch.allow(in->participant, name, ranges)) return kRace;
  const auto now = it.watch.order.count(in->participant);
  for (const auto& range : ranges) {
    if (now > count) it.guard.close(range, name, in->participant, now);  // else no account is kept
  }
  it.simulated->call(in->simulated, std::move(work));
  return 0;
}

/// The host does something with memory; whether it may. The watch's mutex is held.
bool allow_host(const char* name, const void* at, std::size_t bytes) {
  const Range range{.at = at, .bytes = bytes, .writes = true};
  return driver().watch.allow(HappensBefore::kHost, name, {&range, 1});
}

/// The host has waited for what the clock stands for.
void learn(const VectorClock& reached) {
  const std::lock_guard lock(driver().watch.mutex);
  driver().watch.order.wait(HappensBefore::kHost, reached);
  driver().guard.reopen(driver().watch.order);
}

/// No copy may be under way in the range; the driver's mutex is held.
void must_be_idle(const void* at, std::size_t bytes, const char* call) {
  const auto* first = static_cast<const char*>(at);
  for (const auto& [begin, count] : driver().under_way) {
    if (begin >= first + bytes || first >= begin + count) continue;
    std::fprintf(stderr, "%s while a copy is under way\n", call);
    std::abort();
  }
}

int copy(const std::string& name, CUstream_st* stream, void* to, const void* from, std::size_t bytes) {
  auto& it = driver();
  int held = 0;  // milliseconds
  {
    const std::lock_guard lock(it.mutex);
    // Counted from when it was asked for.
    const int fails = setting("FAKE_CUDA_FAILS_AFTER", 0), holds = setting("FAKE_CUDA_HOLDS_AFTER", 0);
    it.copies = fails > 0 || holds > 0 ? it.copies + 1 : 0;
    if (fails > 0 && it.copies == fails) return kLaunchFailed;
    if (holds > 0 && it.copies == holds) held = setting("FAKE_CUDA_HOLDS_MS", 1000);
    for (const void* side : {static_cast<const void*>(to), from}) it.under_way[static_cast<const char*>(side)] = bytes;
  }
  const auto end = [=, &it] {
    const std::lock_guard lock(it.mutex);
    for (const void* side : {static_cast<const void*>(to), from}) it.under_way.erase(static_cast<const char*>(side));
  };
  see_faults();
  std::byte *to_there = nullptr, *from_there = nullptr;
  {
    const std::lock_guard watching(it.watch.mutex);
    to_there = it.guard.driver_address(to);
    from_there = it.guard.driver_address(from);
  }
  const int result = submit(stream, name, {{from, bytes, false}, {to, bytes, true}}, [=] {
    if (held > 0) std::this_thread::sleep_for(std::chrono::milliseconds(held));
    std::memset(to_there, spillway::device::kPoison, bytes);
    std::memcpy(to_there, from_there, bytes);
    end();
  });
  if (result != 0) end();
  return result;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
#define NEEDS_CONTEXT \
  if (!current()) return kInvalidContext

/// PyTorch's side: memory of the caller's that its GPU may use until it is taken back.
EXPORT void fakeCudaLend(unsigned long long address, std::size_t bytes) {
  const std::lock_guard watching(driver().watch.mutex);
  static_cast<void>(allow_host("lending", reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), bytes));
  const std::lock_guard lock(driver().mutex);
  driver().lent.emplace(address, bytes);
}
EXPORT void fakeCudaTakeBack(unsigned long long address) {
  const std::lock_guard watching(driver().watch.mutex);
  const std::lock_guard lock(driver().mutex);
  const auto found = driver().lent.find(address);
  if (found == driver().lent.end()) return;
  static_cast<void>(
      allow_host("taking back", reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), found->second));
  driver().lent.erase(found);
}

/// The caller's own work in a stream, with what it touches.
EXPORT int fakeCudaCall(CUstream_st* stream, const char* name, const Range* ranges, std::size_t count,
                        void (*work)(void*), void* with) {
  return submit(stream, name, {ranges, ranges + count}, [=] { work(with); });
}

/// The account of races (race_watch.h): calls of a kind that may be left out, whether the one that was left out stood
/// for a copy, and the first race, "" for none.
EXPORT int fakeCudaCalls(const char* kind) {
  const std::lock_guard lock(driver().watch.mutex);
  return driver().watch.calls(kind);
}
EXPORT int fakeCudaWasForHost() {
  const std::lock_guard lock(driver().watch.mutex);
  return driver().watch.was_for_host() ? 1 : 0;
}
EXPORT const char* fakeCudaRace() {
  const std::lock_guard lock(driver().watch.mutex);
  return driver().watch.race().c_str();
}

EXPORT int cuInit(unsigned) {
  return setting("FAKE_CUDA_GPUS", 2) == 0 ? spillway::device::kCudaNoDevice : 0;
}
EXPORT int cuDriverGetVersion(int* version) {
  *version = ::version();
  return 0;
}
EXPORT int cuGetErrorName(int error, const char** name) {
  *name = error == 0                 ? "CUDA_SUCCESS"
          : error == kNoBinary       ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : error == kUnsupportedPtx ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
          : error == kRace           ? "a race"
                                     : "CUDA_ERROR_FAKE";
  return 0;
}
EXPORT int cuGetErrorString(int error, const char** words) {
  *words = error == kRace ? fakeCudaRace() : "as the test asked";
  return 0;
}
EXPORT int cuDeviceGetCount(int* count) {
  *count = setting("FAKE_CUDA_GPUS", 2);
  return 0;
}
EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < setting("FAKE_CUDA_GPUS", 2) ? 0 : kInvalidValue;
}
EXPORT int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(length));
  return 0;
}
EXPORT int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = capacity();
  return 0;
}
EXPORT int cuDeviceGetPCIBusId(char* bus, int length, int device) {
  std::strncpy(bus, device == 0 ? "0000:6A:00.0" : "0000:6B:00.0", static_cast<std::size_t>(length));
  return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(CUctx_st** context, int) {
  *context = kContext;
  ++driver().retained;
  return 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int) {
  return --driver().retained < 0 ? kInvalidContext : 0;
}
EXPORT int cuCtxPushCurrent_v2(CUctx_st* context) {
  contexts.push_back(context);
  return 0;
}
EXPORT int cuCtxPopCurrent_v2(CUctx_st** context) {
  NEEDS_CONTEXT;
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}
EXPORT int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  NEEDS_CONTEXT;
  *free = capacity() / 2;
  *total = capacity();
  return 0;
}
EXPORT int cuMemAlloc_v2(unsigned long long* address, std::size_t bytes) {
  NEEDS_CONTEXT;
  if (bytes > capacity()) return spillway::device::kCudaOutOfMemory;
  auto& it = driver();
  const std::lock_guard lock(it.mutex);
  auto memory = std::make_unique<spillway::sys::Mapping>(bytes);
  std::memset(memory->span().data(), spillway::device::kPoison, bytes);
  *address = reinterpret_cast<std::uintptr_t>(memory->span().data());
  it.memory[*address] = std::move(memory);
  return 0;
}
EXPORT int cuMemFree_v2(unsigned long long address) {
  NEEDS_CONTEXT;
  const std::lock_guard watching(driver().watch.mutex);
  const std::lock_guard lock(driver().mutex);
  const auto found = driver().memory.find(address);
  if (found == driver().memory.end()) return kInvalidValue;
  const auto memory = found->second->span();
  if (!allow_host("cuMemFree", memory.data(), memory.size())) return kRace;
  must_be_idle(memory.data(), memory.size(), "cuMemFree");
  driver().memory.erase(found);
  return 0;
}
EXPORT int cuMemAllocHost_v2(void** address, std::size_t bytes) {
  NEEDS_CONTEXT;
  see_faults();
  const std::lock_guard watching(driver().watch.mutex);
  const std::lock_guard lock(driver().mutex);
  *address = driver().guard.allocate(bytes);
  if (*address == nullptr) return spillway::device::kCudaOutOfMemory;
  driver().host[static_cast<char*>(*address)] = bytes;
  return 0;
}
EXPORT int cuMemFreeHost(void* address) {
  NEEDS_CONTEXT;
  const std::lock_guard watching(driver().watch.mutex);
  const std::lock_guard lock(driver().mutex);
  const auto found = driver().host.find(static_cast<char*>(address));
  if (found == driver().host.end()) return kInvalidValue;
  if (!allow_host("cuMemFreeHost", address, found->second)) return kRace;
  must_be_idle(address, found->second, "cuMemFreeHost");
  driver().host.erase(found);
  driver().guard.free(address);
  return 0;
}
EXPORT int cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned flags) {
  NEEDS_CONTEXT;
  if (setting("FAKE_CUDA_REGISTERS", 1) == 0) return spillway::device::kCudaOutOfMemory;
  if (flags != spillway::device::kCudaRegisterPortable) return kInvalidValue;
  const std::lock_guard lock(driver().mutex);
  if (const int most = setting("FAKE_CUDA_REGISTERS_KIB", 0); most > 0) {  // as WSL2, which lets a part of memory
    std::size_t registered = bytes;
    for (const auto& [at, size] : driver().registered) registered += size;
    if (registered > static_cast<std::size_t>(most) << 10) return spillway::device::kCudaOutOfMemory;
  }
  driver().registered.emplace(static_cast<char*>(address), bytes);
  const bool known = !driver().host.emplace(static_cast<char*>(address), bytes).second;
  return known ? kAlreadyRegistered : 0;
}
EXPORT int cuMemHostUnregister(void* address) {
  NEEDS_CONTEXT;
  const std::lock_guard watching(driver().watch.mutex);
  const std::lock_guard lock(driver().mutex);
  const auto found = driver().host.find(static_cast<char*>(address));
  if (found == driver().host.end()) return kInvalidValue;
  if (!allow_host("cuMemHostUnregister", address, found->second)) return kRace;
  must_be_idle(address, found->second, "cuMemHostUnregister");
  driver().registered.erase(found->first);
  driver().host.erase(found);
  return 0;
}
EXPORT int cuStreamCreate(CUstream_st** stream, unsigned flags) {
  NEEDS_CONTEXT;
  if (flags != spillway::device::kCudaStreamNonBlocking) return kInvalidValue;
  auto& it = driver();
  const std::lock_guard watching(it.watch.mutex);
  const std::lock_guard lock(it.mutex);
  *stream = reinterpret_cast<CUstream_st*>(it.next++);
  it.streams[*stream] = make_stream();
  return 0;
}
EXPORT int cuStreamDestroy_v2(CUstream_st* stream) {
  NEEDS_CONTEXT;
  auto& it = driver();
  const std::lock_guard watching(it.watch.mutex);
  const std::lock_guard lock(it.mutex);
  const auto found = it.streams.find(stream);
  if (found == it.streams.end()) return kInvalidHandle;
  if (it.watch.order.is_idle(found->second.participant)) it.idle_streams.push_back(found->second);
  it.streams.erase(found);
  return 0;
}
EXPORT int cuEventCreate(CUevent_st** event, unsigned flags) {
  NEEDS_CONTEXT;
  auto& it = driver();
  const std::lock_guard lock(it.mutex);
  *event = reinterpret_cast<CUevent_st*>(it.next++);
  it.events[*event] = {.simulated = it.simulated->make_event(), .reached = {}};
  if ((flags & spillway::device::kCudaEventNoTiming) == 0) it.timed[*event] = false;
  return 0;
}
EXPORT int cuEventDestroy_v2(CUevent_st* event) {
  NEEDS_CONTEXT;
  const std::lock_guard lock(driver().mutex);
  return driver().events.erase(event) == 1 ? 0 : kInvalidHandle;
}
EXPORT int cuEventRecord(CUevent_st* event, CUstream_st* stream) {
  NEEDS_CONTEXT;
  auto& driver = ::driver();
  const std::lock_guard watching(driver.watch.mutex);
  auto* it = event_of(event);
  const auto* in = stream_of(stream);
  if (it == nullptr || in == nullptr) return kInvalidHandle;
  {
    const std::lock_guard lock(driver.mutex);
    if (const auto timed = driver.timed.find(event); timed != driver.timed.end()) timed->second = true;
  }
  auto reached = driver.watch.order.record(in->participant);
  if (driver.watch.drops("record", reached)) return 0;
  it->reached = std::move(reached);
  driver.simulated->record(it->simulated, in->simulated);
  return 0;
}
EXPORT int cuEventElapsedTime(float* milliseconds, CUevent_st* first, CUevent_st* last) {
  NEEDS_CONTEXT;
  const auto *one = event_of(first), *other = event_of(last);
  if (one == nullptr || other == nullptr) return kInvalidHandle;
  {
    const std::lock_guard lock(driver().mutex);
    for (auto* event : {first, last}) {
      const auto timed = driver().timed.find(event);
      if (timed == driver().timed.end() || !timed->second) return kInvalidHandle;
    }
  }
  auto& simulated = *driver().simulated;
  const auto start = one->simulated, end = other->simulated;
  if (!simulated.done(start) || !simulated.done(end)) return spillway::device::kCudaNotReady;
  *milliseconds = static_cast<float>(simulated.seconds_between(start, end) * 1e3);
  return 0;
}
EXPORT int cuStreamWaitEvent(CUstream_st* stream, CUevent_st* event, unsigned) {
  NEEDS_CONTEXT;
  auto& driver = ::driver();
  const std::lock_guard watching(driver.watch.mutex);
  const auto* it = event_of(event);
  const auto* in = stream_of(stream);
  if (it == nullptr || in == nullptr) return kInvalidHandle;
  if (driver.watch.drops("wait", it->reached)) return 0;
  driver.watch.order.wait(in->participant, it->reached);
  driver.simulated->wait(in->simulated, it->simulated);
  return 0;
}
EXPORT int cuEventQuery(CUevent_st* event) {
  NEEDS_CONTEXT;
  auto& driver = ::driver();
  const std::lock_guard watching(driver.watch.mutex);
  const auto* it = event_of(event);
  if (it == nullptr) return kInvalidHandle;
  if (!driver.simulated->done(it->simulated)) return spillway::device::kCudaNotReady;
  driver.watch.order.wait(HappensBefore::kHost, it->reached);
  driver.guard.reopen(driver.watch.order);
  return 0;
}
EXPORT int cuEventSynchronize(CUevent_st* event) {
  NEEDS_CONTEXT;
  VectorClock reached;
  Event simulated = 0;
  {
    const std::lock_guard watching(driver().watch.mutex);
    const auto* it = event_of(event);
    if (it == nullptr) return kInvalidHandle;
    if (driver().watch.drops("synchronise", it->reached)) return 0;
    reached = it->reached;
    simulated = it->simulated;
  }
  driver().simulated->synchronise(simulated);
  learn(reached);
  return 0;
}
EXPORT int cuStreamSynchronize(CUstream_st* stream) {
  NEEDS_CONTEXT;
  const auto event = driver().simulated->make_event();
  VectorClock reached;
  {
    const std::lock_guard watching(driver().watch.mutex);
    const auto* in = stream_of(stream);
    if (in == nullptr) return kInvalidHandle;
    reached = driver().watch.order.record(in->participant);
    driver().simulated->record(event, in->simulated);
  }
  driver().simulated->synchronise(event);
  learn(reached);
  return 0;
}
EXPORT int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, std::size_t bytes, CUstream_st* stream) {
  NEEDS_CONTEXT;
  if (!on_device(to, bytes) || !registered(from, bytes)) return kInvalidValue;
  return copy("copy to the device", stream, reinterpret_cast<void*>(static_cast<std::uintptr_t>(to)), from, bytes);
}
EXPORT int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, std::size_t bytes, CUstream_st* stream) {
  NEEDS_CONTEXT;
  if (!on_device(from, bytes) || !registered(to, bytes)) return kInvalidValue;
  return copy("copy from the device", stream, to, reinterpret_cast<const void*>(static_cast<std::uintptr_t>(from)),
              bytes);
}
EXPORT int cuModuleLoadDataEx(CUmod_st** module, const void* image, unsigned count, int* options, void** values) {
  NEEDS_CONTEXT;
  const std::string_view ptx = ptx_of(image);
  if (ptx.empty() && version() < kNewest) return kNoBinary;
  if (!ptx.empty() && ptx_version(ptx) > version()) {
    for (unsigned i = 0; i < count; ++i) {
      if (options[i] != spillway::device::kCudaJitErrorLog) continue;
      std::strcpy(static_cast<char*>(values[i]), "ptxas fatal   : Unsupported .version\n");
    }
    return kUnsupportedPtx;
  }
  *module = static_cast<CUmod_st*>(const_cast<void*>(image));
  return 0;
}
EXPORT int cuModuleUnload(CUmod_st*) {
  NEEDS_CONTEXT;
  return 0;
}
EXPORT int cuModuleGetFunction(CUfunc_st** function, CUmod_st*, const char* name) {
  NEEDS_CONTEXT;
  const auto* found = spillway::device::fake::find(name);
  *function = reinterpret_cast<CUfunc_st*>(const_cast<spillway::device::fake::Kernel*>(found));
  return found != nullptr ? 0 : kNotFound;
}
EXPORT int cuLaunchKernel(CUfunc_st* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned thread_y,
                          unsigned thread_z, unsigned shared, CUstream_st* stream, void** arguments, void** extra) {
  NEEDS_CONTEXT;
  const auto* kernel = reinterpret_cast<const spillway::device::fake::Kernel*>(function);
  if (x == 0 || y != 1 || z != 1 || thread_y != 1 || thread_z != 1) return kInvalidValue;
  if (threads != spillway::device::threads::kBlock || shared != 0 || extra != nullptr) return kInvalidValue;
  const auto work = kernel->bound(arguments[0]);  // a driver takes the arguments' bytes now
  for (const auto& range : work.ranges) {
    if (range.bytes == 0 || on_device(reinterpret_cast<std::uintptr_t>(range.at), range.bytes)) continue;
    std::fprintf(stderr, "%s is given %zu bytes that are not the GPU's\n", kernel->name.c_str(), range.bytes);
    return kInvalidValue;
  }
  return submit(stream, kernel->name, work.ranges, [run = work.run, x] { run(x); });
}
EXPORT int cuMemsetD8Async(unsigned long long to, unsigned char value, std::size_t bytes, CUstream_st* stream) {
  NEEDS_CONTEXT;
  if (!on_device(to, bytes)) return kInvalidValue;
  auto* const at = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(to));
  return submit(stream, "fill", {{at, bytes, true}}, [=] { std::memset(at, value, bytes); });
}
