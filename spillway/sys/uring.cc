#include "spillway/base/error.h"
#include "spillway/sys/ring.h"

#ifdef SPILLWAY_URING
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <tuple>
#include <vector>

#include "spillway/sys/errno.h"
#include "spillway/sys/fork.h"

namespace spillway::sys {
namespace {

constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};
constexpr int kFileIndex = 0;

/// From the best to what every kernel with io_uring has. One issuer and deferred task work (6.1) keep completions from
/// interrupting the thread; cooperative task running is the next best (5.19).
constexpr std::array<unsigned, 3> kSetups = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                             IORING_SETUP_COOP_TASKRUN, 0};

[[noreturn]] void refuse(int errno_value, const char* what) {
  throw Error(ErrorCode::unsupported, text("io_uring is not available: ", what, ": ", describe_errno(errno_value)),
              errno_value);
}

[[noreturn]] void fail(int errno_value, const char* what) {
  throw Error(ErrorCode::io, text("io_uring failed: ", what, ": ", describe_errno(errno_value)), errno_value);
}

class Uring final : public Ring {
 public:
  Uring(const File& file, unsigned depth) : fd_(file.fd()) {
    create(depth + 1);  // one entry for the wake-up
    require_operations();
    register_file();
    event_ = open_unforked([] { return ::eventfd(0, EFD_CLOEXEC); });
    if (event_ < 0) refuse_and_close(errno, "eventfd");
    arm_wake();
  }

  ~Uring() override {
    close_ring();
    if (event_ >= 0) close_unforked(event_);
  }

  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  [[nodiscard]] std::string_view name() const noexcept override { return "io_uring"; }

  std::string register_memory(std::span<std::byte> memory) override {
    std::vector<iovec> regions;
    for (std::size_t at = 0; at < memory.size(); at += kRegistrationLimit) {
      const std::size_t length = std::min<std::size_t>(kRegistrationLimit, memory.size() - at);
      regions.push_back({memory.data() + at, length});
    }
    if (regions.empty()) return {};
    const int result = io_uring_register_buffers(&ring_, regions.data(), static_cast<unsigned>(regions.size()));
    if (result < 0) return describe_errno(-result);
    registered_ = memory;
    return {};
  }

  void submit(const Piece& piece) override {
    io_uring_sqe* entry = next_entry();
    if (piece.operation == Operation::sync) {
      io_uring_prep_fsync(entry, file_, IORING_FSYNC_DATASYNC);
    } else {
      prepare_transfer(entry, piece);
    }
    if (file_registered_) entry->flags |= IOSQE_FIXED_FILE;
    entry->user_data = piece.tag;
  }

  void flush() override {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int result = io_uring_submit(&ring_);
      if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY) fail(-result, "submit");
    }
  }

  std::size_t wait(std::span<Completion> out) override {
    flush();
    while (io_uring_cq_ready(&ring_) == 0) {
      const int result = io_uring_submit_and_wait(&ring_, 1);
      if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY) fail(-result, "wait");
    }
    return reap(out);
  }

  void wake() noexcept override {
    const std::uint64_t one = 1;
    while (::write(event_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

 private:
  void prepare_transfer(io_uring_sqe* entry, const Piece& piece) const {
    const int region = region_of(piece);
    const bool write = piece.operation == Operation::write;
    if (region >= 0 && write) {
      io_uring_prep_write_fixed(entry, file_, piece.memory, piece.bytes, piece.offset, region);
    } else if (region >= 0) {
      io_uring_prep_read_fixed(entry, file_, piece.memory, piece.bytes, piece.offset, region);
    } else if (write) {
      io_uring_prep_write(entry, file_, piece.memory, piece.bytes, piece.offset);
    } else {
      io_uring_prep_read(entry, file_, piece.memory, piece.bytes, piece.offset);
    }
  }

  void create(unsigned entries) {
    int result = 0;
    std::ignore = open_unforked([&] {
      for (const unsigned flags : kSetups) {
        result = io_uring_queue_init(entries, &ring_, flags);
        if (result != -EINVAL) break;
      }
      return result < 0 ? result : ring_.ring_fd;
    });
    if (result < 0) refuse(-result, "setup");
    io_uring_ring_dontfork(&ring_);  // its mappings would keep the ring, and so the file, open in a child
  }

  void close_ring() {
    close_unforked(ring_.ring_fd, [this] { io_uring_queue_exit(&ring_); });
  }

  [[noreturn]] void refuse_and_close(int errno_value, const char* what) {
    close_ring();
    refuse(errno_value, what);
  }

  /// Plain reads and writes came in 5.6; rings before that are of no use here.
  void require_operations() {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    bool complete = probe != nullptr;
    for (const int operation :
         {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_FSYNC}) {
      complete = complete && io_uring_opcode_supported(probe, operation) != 0;
    }
    io_uring_free_probe(probe);
    if (!complete) refuse_and_close(ENOSYS, "reads, writes and flushes");
  }

  void register_file() {
    file_registered_ = io_uring_register_files(&ring_, &fd_, 1) == 0;
    file_ = file_registered_ ? kFileIndex : fd_;
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      flush();
      entry = io_uring_get_sqe(&ring_);
    }
    if (entry == nullptr) throw Error(ErrorCode::internal, "more pieces than the ring was made for");
    return entry;
  }

  void arm_wake() {
    io_uring_sqe* entry = next_entry();
    io_uring_prep_read(entry, event_, &event_count_, sizeof event_count_, 0);
    entry->user_data = kWakeTag;
  }

  std::size_t reap(std::span<Completion> out) {
    std::size_t count = 0;
    io_uring_cqe* entry = nullptr;
    while (count < out.size() && io_uring_peek_cqe(&ring_, &entry) == 0) {
      const Completion completion{entry->user_data, entry->res};
      io_uring_cqe_seen(&ring_, entry);
      if (completion.tag == kWakeTag) {
        arm_wake();
      } else {
        out[count++] = completion;
      }
    }
    return count;
  }

  /// The registered region a piece lies in whole; -1 for none.
  [[nodiscard]] int region_of(const Piece& piece) const noexcept {
    const std::byte* begin = registered_.data();
    if (begin == nullptr || piece.memory < begin || piece.memory + piece.bytes > begin + registered_.size()) return -1;
    const auto first = static_cast<Bytes>(piece.memory - begin);
    const Bytes region = first / kRegistrationLimit;
    return (first + piece.bytes - 1) / kRegistrationLimit == region ? static_cast<int>(region) : -1;
  }

  io_uring ring_{};
  int fd_;
  int event_ = -1;
  std::uint64_t event_count_ = 0;  ///< where the wake-up's read lands
  int file_ = -1;                  ///< what entries name: an index when registered, else fd_
  bool file_registered_ = false;
  std::span<std::byte> registered_;
};

}  // namespace

std::unique_ptr<Ring> make_uring(const File& file, unsigned depth) {
  return std::make_unique<Uring>(file, depth);
}

}  // namespace spillway::sys
#else
namespace spillway::sys {

std::unique_ptr<Ring> make_uring(const File&, unsigned) {
  throw Error(ErrorCode::unsupported, "io_uring is not available: liburing was not there when this was built");
}

}  // namespace spillway::sys
#endif

namespace spillway::sys {

std::unique_ptr<Ring> make_ring(const File& file, unsigned depth) {
  try {
    return make_uring(file, depth);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return make_thread_ring(file, depth);
  }
}

}  // namespace spillway::sys
