#include "spillway/device/cuda.h"

#include <optional>

#include "spillway/base/error.h"
#include "spillway/device/cuda_module.h"

namespace spillway::device {
namespace {

unsigned long long address(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at);
}

class Cuda final : public Device {
 public:
  explicit Cuda(const CudaOptions& options)
      : Device(options.piece), driver_(options.library), calls_(driver_.calls()), index_(options.index) {
    if (options.index < 0 || options.index >= driver_.devices()) {
      throw Error(ErrorCode::bad_input, text("device: cuda:", options.index, " is not there; this process sees ",
                                             driver_.devices(), driver_.devices() == 1 ? " GPU" : " GPUs", ", cuda:0",
                                             driver_.devices() == 1 ? "" : text(" to cuda:", driver_.devices() - 1)));
    }
    const auto facts = gpus(driver_)[static_cast<std::size_t>(index_)];
    name_ = text("cuda:", index_, " (", facts.name, ")");
    node_ = facts.node;
    driver_.check(calls_.device_get(&device_, index_), "cuDeviceGet");
    driver_.check(calls_.retain_context(&context_, device_), "cuDevicePrimaryCtxRetain");
    const Current current(*this);
    module_.emplace(driver_, options.kernels);
  }

  ~Cuda() override {
    end_staging();
    {
      const Current current(*this);
      // Nothing here can be told to anybody any more.
      for (auto* stream : streams_) static_cast<void>(calls_.synchronise_stream(stream));
      for (auto* stream : own_) static_cast<void>(calls_.destroy_stream(stream));
      for (auto* event : events_) static_cast<void>(calls_.destroy_event(event));
      for (auto* staging : staging_) static_cast<void>(calls_.free_host(staging));
      for (auto* host : registered_) static_cast<void>(calls_.unregister_host(host));
      module_.reset();
      if (!memory().empty()) static_cast<void>(calls_.free(address(memory().data())));
    }
    static_cast<void>(calls_.release_context(device_));
  }

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::optional<int> node() const override { return node_; }
  [[nodiscard]] bool separate() const noexcept override { return true; }
  [[nodiscard]] bool host_reads() const noexcept override { return false; }

  [[nodiscard]] Stream make_stream() override {
    const Current current(*this);
    CUstream_st* stream = nullptr;
    driver_.check(calls_.create_stream(&stream, kCudaStreamNonBlocking), "cuStreamCreate");
    const auto number = add(stream);
    own_.push_back(stream);
    return number;
  }

  [[nodiscard]] Stream adopt_stream(void* native) override { return add(static_cast<CUstream_st*>(native)); }

  [[nodiscard]] Event make_event() override { return make_event(kCudaEventBlocking | kCudaEventNoTiming); }
  [[nodiscard]] Event make_timed_event() override { return make_event(kCudaEventBlocking); }

  [[nodiscard]] std::string cannot_compute() const override {
    return module_->refusal().empty() ? "" : text(name_, ": ", module_->refusal());
  }
  [[nodiscard]] std::string computes_with() const override { return module_->form(); }

  void run(Stream stream, const Work& work) override {
    if (!module_->refusal().empty()) throw Error(ErrorCode::unsupported, cannot_compute());
    auto launch = launch_of(work);
    if (launch.kernel.empty()) return;
    const Current current(*this);
    void* arguments[] = {launch.arguments.data()};
    driver_.check(calls_.launch(module_->kernel(launch.kernel), launch.blocks, 1, 1, Launch::kThreads, 1, 1, 0,
                                stream_of(stream), arguments, nullptr),
                  "cuLaunchKernel");
  }

  void fill(Stream stream, std::byte* to, std::uint8_t value, Bytes bytes) override {
    const Current current(*this);
    driver_.check(calls_.fill(address(to), value, bytes, stream_of(stream)), "cuMemsetD8Async");
  }

  void do_record(Event event, Stream stream) override {
    const Current current(*this);
    driver_.check(calls_.record_event(event_of(event), stream_of(stream)), "cuEventRecord");
  }

  void do_wait(Stream stream, Event event) override {
    const Current current(*this);
    driver_.check(calls_.wait_event(stream_of(stream), event_of(event), 0), "cuStreamWaitEvent");
  }

  [[nodiscard]] bool do_done(Event event) override {
    const Current current(*this);
    const auto result = calls_.query_event(event_of(event));
    if (result == kCudaNotReady) return false;
    driver_.check(result, "cuEventQuery");
    return true;
  }

  void do_synchronise(Event event) override {
    const Current current(*this);
    driver_.check(calls_.synchronise_event(event_of(event)), "cuEventSynchronize");
  }

  [[nodiscard]] double seconds_between(Event first, Event last) override {
    const Current current(*this);
    float milliseconds = 0;
    driver_.check(calls_.elapsed(&milliseconds, event_of(first), event_of(last)), "cuEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

  void do_synchronise() override {
    const Current current(*this);
    for (auto* stream : streams()) driver_.check(calls_.synchronise_stream(stream), "cuStreamSynchronize");
  }

 private:
  /// The context is the calling thread's for a scope; what was its own comes back.
  class Current {
   public:
    explicit Current(const Cuda& cuda) : cuda_(cuda) {
      cuda.driver_.check(cuda.calls_.push_context(cuda.context_), "cuCtxPushCurrent");
    }
    ~Current() {
      CUctx_st* mine = nullptr;
      static_cast<void>(cuda_.calls_.pop_context(&mine));
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Cuda& cuda_;
  };

  [[nodiscard]] Event make_event(unsigned flags) {
    const Current current(*this);
    CUevent_st* event = nullptr;
    driver_.check(calls_.create_event(&event, flags), "cuEventCreate");
    const std::lock_guard lock(handles_);
    events_.push_back(event);
    return static_cast<Event>(events_.size() - 1);
  }

  [[nodiscard]] CUstream_st* stream_of(Stream stream) const {
    const std::lock_guard lock(handles_);
    return streams_[stream];
  }
  [[nodiscard]] CUevent_st* event_of(Event event) const {
    const std::lock_guard lock(handles_);
    return events_[event];
  }
  [[nodiscard]] std::vector<CUstream_st*> streams() const {
    const std::lock_guard lock(handles_);
    return streams_;
  }

  Stream add(CUstream_st* stream) {
    const std::lock_guard lock(handles_);
    streams_.push_back(stream);
    return static_cast<Stream>(streams_.size() - 1);
  }

  std::span<std::byte> do_allocate(Bytes bytes) override {
    const Current current(*this);
    unsigned long long at = 0;
    const auto result = calls_.allocate(&at, bytes);
    if (result == kCudaOutOfMemory) {
      std::size_t free = 0, total = 0;
      driver_.check(calls_.memory_info(&free, &total), "cuMemGetInfo");
      throw Error(ErrorCode::does_not_fit,
                  text("does not fit on ", name_, ": ", human(bytes), " are asked, and ", human(free), " of ",
                       human(total), " are free; use a smaller --gpu_memory, or end what else runs there"));
    }
    driver_.check(result, "cuMemAlloc");
    return {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(at)), bytes};
  }

  std::string do_register(std::span<std::byte> range) override {
    const Current current(*this);
    const auto result = calls_.register_host(range.data(), range.size(), kCudaRegisterPortable);
    if (result != kCudaSuccess) return driver_.words(result);
    registered_.push_back(range.data());
    return {};
  }

  void do_unregister(std::span<std::byte> range) noexcept override {
    const Current current(*this);
    static_cast<void>(calls_.unregister_host(range.data()));
    std::erase(registered_, range.data());
  }

  std::span<std::byte> staging_memory(Bytes bytes) override {
    const Current current(*this);
    void* at = nullptr;
    driver_.check(calls_.allocate_host(&at, bytes), "cuMemAllocHost");
    staging_.push_back(at);
    return {static_cast<std::byte*>(at), bytes};
  }

  void issue(Stream stream, Direction direction, std::byte* to, const std::byte* from, Bytes bytes) override {
    const Current current(*this);
    if (direction == Direction::to_device) {
      driver_.check(calls_.copy_to_device(address(to), from, bytes, stream_of(stream)), "cuMemcpyHtoDAsync");
    } else {
      driver_.check(calls_.copy_from_device(to, address(from), bytes, stream_of(stream)), "cuMemcpyDtoHAsync");
    }
  }

  const CudaDriver driver_;
  const CudaCalls& calls_;
  const int index_;
  std::string name_;
  std::optional<int> node_;
  int device_ = 0;
  CUctx_st* context_ = nullptr;
  std::optional<CudaModule> module_;  ///< without kernels a GPU may still copy
  mutable std::mutex handles_;        ///< guards the next two
  std::vector<CUstream_st*> streams_;
  std::vector<CUevent_st*> events_;
  std::vector<CUstream_st*> own_;
  std::vector<void*> staging_;
  std::vector<std::byte*> registered_;
};

}  // namespace

std::unique_ptr<Device> make_cuda(const CudaOptions& options) {
  return std::make_unique<Cuda>(options);
}

}  // namespace spillway::device
