#include "spillway/journal/path_media.h"

#include <utility>

namespace spillway::journal {

PathMedia::Call* PathMedia::begin(Done done) {
  const MutexLock lock(mutex_);
  if (spare_.empty()) {
    spare_.reserve(all_.size() + 1);  // first, so that `ended` has room for all there are
    all_.push_back(std::make_unique<Call>());
    spare_.push_back(all_.back().get());
  }
  Call* call = spare_.back();
  spare_.pop_back();
  call->media = this;
  call->done = std::move(done);
  return call;
}

void PathMedia::ended(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
  auto* call = static_cast<Call*>(context);
  const Done done = std::move(call->done);
  {
    const MutexLock lock(call->media->mutex_);
    call->media->spare_.push_back(call);
  }
  done(error);
}

void PathMedia::write(std::uint32_t path, Bytes offset, std::span<const std::byte> bytes, Done done) {
  auto* call = begin(std::move(done));
  try {
    paths_[path]->start({.direction = storage::Direction::write,
                         .memory = const_cast<std::byte*>(bytes.data()),  // a write only reads it
                         .bytes = bytes.size(),
                         .offset = offset,
                         .done = &PathMedia::ended,
                         .context = call,
                         .what = "a record",
                         .area = storage::Area::metadata});
  } catch (...) {
    ended(call, 0, std::current_exception());
  }
}

void PathMedia::sync(std::uint32_t path, Done done) {
  paths_[path]->sync(&PathMedia::ended, begin(std::move(done)), 0);
}

void PathMedia::read(std::uint32_t path, Bytes offset, std::span<std::byte> bytes) {
  for (Bytes at = 0; at < bytes.size(); at += storage::kExtentAlignment) {
    paths_[path]->run({.direction = storage::Direction::read,
                       .memory = bytes.data() + at,
                       .bytes = std::min<Bytes>(storage::kExtentAlignment, bytes.size() - at),
                       .offset = offset + at,
                       .what = "records",
                       .area = storage::Area::metadata});
  }
}

}  // namespace spillway::journal
