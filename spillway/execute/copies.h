// Copies between the host and a device, as the schedule's lanes of each direction, and updates on the device as a
// third: a thread that gives a stream its work, the earliest deadline first, and waits for its ends, so that the caller
// who computes never does.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "spillway/device/device.h"
#include "spillway/execute/device_updates.h"
#include "spillway/plan/schedule.h"
#include "spillway/storage/path.h"

namespace spillway::execute {

/// Point at which the compute stream waits for a copy or an update that a pass needs.
struct Mark {
  device::Event event = 0;
  std::uint64_t instance = ~std::uint64_t{0};  ///< when it was recorded last
  std::uint64_t number = 0;                    ///< of a copy or update, in the order of its lane
};

/// The stream has the copy or update with this token; its lane then records no earlier one. Called before `done`.
using Issued = void (*)(void* context, std::uint64_t token) noexcept;

/// One direction, or the updates.
class CopyLane {
 public:
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    Bytes bytes = 0;
    plan::Index updates = plan::kNone;        ///< the chunk, in the lane of updates; nothing is copied
    std::optional<device::Event> after = {};  ///< that the stream waits for first
    Mark* mark = nullptr;  ///< its event is recorded behind the copy, and its number set; null: no pass needs the copy
    std::uint64_t deadline = 0;
    Issued issued = nullptr;  ///< called when `mark` is recorded, by the lane's thread or the device's; null: nobody
    storage::Done done = nullptr;  ///< called by the lane's thread when the bytes are there
    void* context = nullptr;
    std::uint64_t token = 0;
    plan::Index task = plan::kNone;  ///< of the schedule, for front()
  };

  /// The copy or update that the lane's thread waits for.
  struct Front {
    plan::Index task = plan::kNone;
    Bytes bytes = 0;            ///< 0: an update
    std::size_t under_way = 0;  ///< given to the stream, this one included; 0: there is none
    double seconds = 0;         ///< since the lane's last end, or since this one was given to an idle lane
  };

  /// `updates`: runs these; null: copies in that direction.
  CopyLane(device::Device& device, device::Direction direction, DeviceUpdates* updates = nullptr);
  ~CopyLane();
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  void start(const Copy& copy);
  /// Any thread may ask.
  [[nodiscard]] Front front() const;

 private:
  /// Given to the stream at once: enough that the link does not wait for us, few enough that an urgent copy is soon
  /// next.
  static constexpr std::size_t kDepth = 3;

  struct UnderWay {
    Copy copy;
    device::Event event = 0;  ///< behind the copy
    std::exception_ptr error;
  };

  void serve();
  void show_front(const std::deque<UnderWay>& under_way);  // locked
  void issue(UnderWay& it);
  void end(UnderWay& it);

  device::Device& device_;
  const device::Direction direction_;
  DeviceUpdates* const updates_;  ///< null: copies
  const device::Stream stream_;
  std::array<device::Event, kDepth> events_{};
  std::uint64_t issued_ = 0;  ///< the thread's own

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable wake_;
  std::vector<Copy> ready_;                           ///< heap
  Front front_;                                       ///< without `seconds`
  std::chrono::steady_clock::time_point waits_from_;  ///< when the lane ended something last, or was idle
  bool stop_ = false;
  std::thread thread_;
};

/// Device that passes compute on, if its memory is not the host's.
struct ComputeDevice {
  device::Device* device = nullptr;  ///< with its arena; null: the host
  device::Stream stream = 0;         ///< of the caller's work
  DeviceUpdates* updates = nullptr;  ///< matters with a device
};

/// The callbacks for a copy or update.
struct Listener {
  Issued issued = nullptr;  ///< of what a pass of the device needs
  storage::Done done = nullptr;
  void* context = nullptr;
};

/// Both directions and the updates, the passes that these wait for on the device, and the waits of the passes for
/// these.
class Copies {
 public:
  /// `compute`: the stream that passes are issued to. All references must outlive it.
  Copies(const plan::Schedule& schedule, std::byte* host, device::Device& device, device::Stream compute,
         DeviceUpdates& updates, const Listener& listener);

  void begin(std::uint64_t instance);
  /// The pass's work has been given to the stream.
  void issued(std::uint64_t instance, plan::Index pass);
  /// A copy of so many bytes or an update, when all that it needs has ended or been issued.
  void start(std::uint64_t instance, plan::Index task, Bytes bytes, std::uint64_t deadline, std::uint64_t token);
  /// The compute stream waits for the copies and updates that a pass needs. All of them must be issued or have ended.
  void await_needs(std::uint64_t instance, plan::Index pass);
  /// Task that each lane waits for. Any thread may ask.
  [[nodiscard]] std::map<plan::Lane, CopyLane::Front> fronts() const;

 private:
  /// A pass of the device; of the instance before when `previous`.
  struct Need {
    plan::Index pass = plan::kNone;
    bool previous = false;
  };
  void make_marks();
  void collect(plan::Index task, bool previous, std::vector<std::uint8_t>& seen, std::vector<Need>& out) const;
  [[nodiscard]] std::optional<device::Event> last_of(const std::vector<Need>& needs, std::uint64_t instance);
  [[nodiscard]] std::optional<plan::Index> issued_up_to(plan::Index pass, std::uint64_t instance) const;  // locked

  const plan::Schedule& schedule_;
  std::byte* const host_;
  device::Device& device_;
  const device::Stream compute_;
  const Listener listener_;
  std::vector<std::vector<Need>> needs_;                ///< by task; of copies and updates
  std::array<std::vector<Mark>, 2> fed_;                ///< by instance modulo 2, by task
  std::vector<std::uint8_t> feeds_;                     ///< by task: a pass of the device needs it
  std::mutex mutex_;                                    ///< guards what follows up to the lanes
  std::optional<device::Event> last_;                   ///< of the pass that was issued last
  std::array<std::optional<device::Event>, 2> before_;  ///< by instance modulo 2: `last_` when it began
  std::array<std::vector<Mark>, 2> marks_;              ///< by instance modulo 2, by pass
  CopyLane up_, down_, updates_;
};

}  // namespace spillway::execute
