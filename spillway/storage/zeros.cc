#include "spillway/storage/zeros.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>

#include "spillway/base/interrupt.h"
#include "spillway/sys/errno.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/ring.h"

namespace spillway::storage {
namespace {

constexpr Bytes kPiece = 1 * MiB;
constexpr unsigned kWriteDepth = 8;

class Eraser {
 public:
  Eraser(const sys::File& file, Bytes begin, Bytes end)
      : file_(file), begin_(begin), next_(begin), end_(end), ring_(sys::make_ring(file, kWriteDepth)) {}

  /// Ends only when nothing is in flight any more, whatever went wrong.
  void run(const std::function<void(Bytes, Bytes)>& progress) {
    std::exception_ptr failure;
    Bytes done = 0;
    while (true) {
      while (!failure && in_flight_ < kWriteDepth && next_ < end_) submit();
      if (in_flight_ == 0) break;
      std::array<sys::Completion, kWriteDepth> batch;
      if (!failure) failure = interruption();
      const std::size_t count = ring_->wait(batch);
      for (const sys::Completion& completion : std::span(batch).first(count)) {
        --in_flight_;
        try {
          done += settle(completion);
          if (progress && !failure) progress(done, end_ - begin_);
        } catch (...) {
          if (!failure) failure = std::current_exception();
        }
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  [[nodiscard]] Bytes length_at(Bytes offset) const noexcept { return std::min(kPiece, end_ - offset); }

  /// Kept like any other failure: what is in flight still reads our memory.
  static std::exception_ptr interruption() {
    try {
      throw_if_interrupted();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  void submit() {
    const Bytes bytes = length_at(next_);
    ring_->submit({sys::Operation::write, zeros_.span().data(), static_cast<std::uint32_t>(bytes), next_, next_});
    next_ += bytes;
    ++in_flight_;
  }

  /// What a piece did not manage is written by blocking calls.
  Bytes settle(const sys::Completion& completion) {
    const Bytes bytes = length_at(completion.tag);
    const int result = completion.result;
    if (result < 0 && result != -EINTR && result != -EAGAIN) {
      sys::throw_errno(-result, text("write ", bytes, " bytes at ", completion.tag, " of"), file_.path());
    }
    const Bytes whole = static_cast<Bytes>(std::max(result, 0)) / sys::kDirectAlignment * sys::kDirectAlignment;
    file_.write(zeros_.span().subspan(whole, bytes - whole), completion.tag + whole);
    return bytes;
  }

  const sys::File& file_;
  const Bytes begin_;
  Bytes next_;
  const Bytes end_;
  const sys::Mapping zeros_{kPiece};
  unsigned in_flight_ = 0;
  std::unique_ptr<sys::Ring> ring_;
};

}  // namespace

void write_zeros(const sys::File& file, Bytes begin, Bytes end, const std::function<void(Bytes, Bytes)>& progress) {
  if (begin < end) Eraser(file, begin, end).run(progress);
}

}  // namespace spillway::storage
