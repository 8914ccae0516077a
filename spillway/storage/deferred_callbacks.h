// The callbacks of a pool that wait until its lock has been released.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/storage/pool.h"

namespace spillway::storage {

/// One completion, which is the usual number, needs no allocation.
class DeferredCallbacks {
 public:
  void add_completion(const Pool::Request& request, std::exception_ptr error) {
    Completion end{request.done, request.context, request.token, std::move(error)};
    if (first_) {
      more_.push_back(std::move(end));
    } else {
      first_ = std::move(end);
    }
  }
  void add_outage(const Outage& outage) { outages_.push_back(outage); }
  void add_scarcity() noexcept { scarce_ = true; }

  [[nodiscard]] bool empty() const noexcept { return !first_ && outages_.empty() && !scarce_; }
  [[nodiscard]] std::size_t completions() const noexcept { return more_.size() + (first_ ? 1 : 0); }

  /// The pool must not be locked.
  void call(const PoolOptions& options) const {
    for (const Outage& outage : outages_) {
      if (options.on_outage) options.on_outage(outage);
    }
    if (scarce_ && options.on_scarce) options.on_scarce();
    if (first_) first_->call();
    for (const Completion& end : more_) end.call();
  }

 private:
  struct Completion {
    Done done;
    void* context;
    std::uint64_t token;
    std::exception_ptr error;
    void call() const { done(context, token, error); }
  };
  std::optional<Completion> first_;
  std::vector<Completion> more_;
  std::vector<Outage> outages_;
  bool scarce_ = false;
};

}  // namespace spillway::storage
