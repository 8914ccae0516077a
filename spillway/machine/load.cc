#include "spillway/machine/load.h"

#include <thread>

#include "spillway/base/error.h"
#include "spillway/sys/thread.h"

namespace spillway::machine {
namespace {

constexpr double kBurst = 0.25;  ///< of the time that is counted

std::chrono::steady_clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Load::Load(storage::Path& path, std::span<std::byte> memory, Area area, Bytes transfer)
    : path_(path), memory_(memory), area_(area), transfer_(transfer) {
  if (transfer == 0 || transfer % storage::kExtentAlignment != 0) {
    throw Error(ErrorCode::internal, text("a load's transfers are multiples of 1 MiB, not ", transfer, " bytes"));
  }
}

LoadResult Load::run(std::size_t readers, std::size_t writers, double seconds) {
  once_ = false;
  end_ = Clock::now() + duration_of(seconds);
  return go(readers, writers);
}

LoadResult Load::steady(std::size_t readers, std::size_t writers, double seconds) {
  once_ = false;
  const Sample before = look();
  end_ = before.at + duration_of((1 + kBurst) * seconds);
  begin(readers, writers);
  std::this_thread::sleep_until(before.at + duration_of(kBurst * seconds));
  const Sample first = look();
  std::this_thread::sleep_until(end_);
  const LoadResult out = between(first, look());
  const Sample after = finish();
  return out.read + out.written > 0 ? out : between(before, after);
}

LoadResult Load::fill(std::size_t writers) {
  once_ = true;
  return go(0, writers);
}

LoadResult Load::go(std::size_t readers, std::size_t writers) {
  const Sample before = look();
  begin(readers, writers);
  return between(before, finish());
}

Load::Sample Load::look() const {
  return {Clock::now(), sys::process_cpu_seconds(), path_.counters()};
}

LoadResult Load::between(const Sample& first, const Sample& last) {
  const std::chrono::duration<double> seconds = last.at - first.at;
  return {seconds.count(), last.cpu - first.cpu, last.counters.read - first.counters.read,
          last.counters.written - first.counters.written};
}

void Load::begin(std::size_t readers, std::size_t writers) {
  divide(readers, writers);
  failure_ = nullptr;
  for (Stream& stream : streams_) start(stream);
}

Load::Sample Load::finish() {
  path_.drain();
  if (failed()) std::rethrow_exception(failure_);
  return look();
}

/// Every stream takes each `count`-th place, so that together they go through the area in order. Readers and writers
/// alternate, so that both cover all of it.
void Load::divide(std::size_t readers, std::size_t writers) {
  const std::size_t count = readers + writers;
  const Bytes slots = area_.bytes / transfer_;
  stride_ = count * transfer_;
  last_ = area_.offset + slots * transfer_;
  if (count == 0 || slots < count || memory_.size() / transfer_ < count) {
    throw Error(ErrorCode::internal,
                text("a load of ", count, " streams of ", human(transfer_), " does not fit an area of ",
                     human(area_.bytes), " and a memory of ", human(memory_.size())));
  }
  streams_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const bool read = i % 2 == 0 ? readers > 0 : writers == 0;
    (read ? readers : writers) -= 1;
    const Bytes first = area_.offset + i * transfer_;
    streams_.push_back({this, read ? storage::Direction::read : storage::Direction::write,
                        memory_.data() + i * transfer_, first, first});
  }
}

void Load::start(Stream& stream) {
  storage::Transfer transfer;
  transfer.direction = stream.direction;
  transfer.memory = stream.memory;
  transfer.bytes = transfer_;
  transfer.offset = stream.next;
  transfer.done = &Load::done;
  transfer.context = &stream;
  transfer.what = "a measurement";
  stream.next += stride_;
  try {
    path_.start(transfer);
  } catch (...) {
    fail(std::current_exception());
  }
}

void Load::fail(const std::exception_ptr& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = error;
}

bool Load::failed() const noexcept {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

void Load::done(void* context, std::uint64_t /*token*/, const std::exception_ptr& error) noexcept {
  auto& stream = *static_cast<Stream*>(context);
  Load& load = *stream.load;
  if (error) load.fail(error);
  if (load.failed()) return;
  if (load.once_ ? stream.next >= load.last_ : Clock::now() >= load.end_) return;
  if (stream.next >= load.last_) stream.next = stream.first;
  load.start(stream);
}

}  // namespace spillway::machine
