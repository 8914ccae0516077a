// What the listeners of a pool are to be told once its lock is gone.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/storage/pool.h"

namespace spillway::storage {

/// Has room for the usual one end without an allocation.
class News {
 public:
  void add_end(const Pool::Request& request, std::exception_ptr error) {
    End end{request.done, request.context, request.token, std::move(error)};
    if (first_) {
      more_.push_back(std::move(end));
    } else {
      first_ = std::move(end);
    }
  }
  void add_outage(const Outage& outage) { outages_.push_back(outage); }
  void set_scarce() noexcept { scarce_ = true; }

  [[nodiscard]] bool empty() const noexcept { return !first_ && outages_.empty() && !scarce_; }
  [[nodiscard]] std::size_t ends() const noexcept { return more_.size() + (first_ ? 1 : 0); }

  void tell(const PoolOptions& options) const {
    for (const Outage& outage : outages_) {
      if (options.on_outage) options.on_outage(outage);
    }
    if (scarce_ && options.on_scarce) options.on_scarce();
    if (first_) first_->tell();
    for (const End& end : more_) end.tell();
  }

 private:
  struct End {
    Done done;
    void* context;
    std::uint64_t token;
    std::exception_ptr error;
    void tell() const { done(context, token, error); }
  };
  std::optional<End> first_;
  std::vector<End> more_;
  std::vector<Outage> outages_;
  bool scarce_ = false;
};

}  // namespace spillway::storage
