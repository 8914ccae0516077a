// Paths in memory with the semantics of a power cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/journal/media.h"
#include "spillway/journal/piece.h"

namespace spillway::journal::testing {

using Hash = std::uint64_t;

inline Hash mix(Hash a, Hash b) {
  Hash h = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
  return h ^ (h >> 31);
}

/// What a path holds: metadata as bytes, pieces as one number each.
struct Remains {
  std::vector<std::byte> metadata;
  std::vector<Hash> pieces;
};

/// Reads what is left.
class RemainsMedia : public Media {
 public:
  explicit RemainsMedia(const std::vector<Remains>& paths) : paths_(paths) {}
  void write(std::uint32_t, Bytes, std::span<const std::byte>, Done) override { std::abort(); }
  void sync(std::uint32_t, Done) override { std::abort(); }
  void read(std::uint32_t path, Bytes offset, std::span<std::byte> bytes) override {
    const auto from = paths_[path].metadata.begin() + std::ptrdiff_t(offset);
    std::copy(from, from + std::ptrdiff_t(bytes.size()), bytes.begin());
  }

 private:
  const std::vector<Remains>& paths_;
};

/// Operations complete when told to, in any order. A sync makes durable what had completed when it was started.
class PowerCutMedia : public Media {
 public:
  PowerCutMedia(std::uint32_t paths, Bytes metadata, std::size_t pieces, std::uint32_t seed);

  void write(std::uint32_t path, Bytes offset, std::span<const std::byte> bytes, Done done) override;
  void sync(std::uint32_t path, Done done) override;
  void read(std::uint32_t path, Bytes offset, std::span<std::byte> bytes) override;
  void write_piece(const storage::Place& place, Hash tag, Done done);

  [[nodiscard]] bool idle() const { return in_flight_.empty(); }
  /// Completes one operation, any.
  void complete_one();
  /// What a cut would leave: of what was not flushed, nothing, everything, or any subset of sectors.
  enum class Fate { nothing, everything, any };
  void cut(Fate fate, std::vector<Remains>& out);
  /// The process is gone: whatever is in flight may have been done or not; nothing is flushed.
  void kill();
  /// After kill(): another process flushes the paths before it looks at them.
  void flush() { become(live_); }
  /// The power is gone, too.
  void become(const std::vector<Remains>& remains);
  [[nodiscard]] const std::vector<Remains>& live() const { return live_; }

  bool lying_syncs = false;      ///< they make nothing durable
  std::uint32_t bad_path = ~0u;  ///< writes to it fail
  std::string wrong;             ///< two writes to one place at a time

 private:
  struct Write {
    std::uint64_t id;
    std::uint32_t path;
    bool data;
    Bytes at;  ///< offset, or piece
    std::vector<std::byte> bytes;
    Hash tag;
    bool completed = false;
  };
  struct Operation {
    bool is_sync;
    std::uint64_t write;  ///< id
    std::uint32_t path;
    std::set<std::uint64_t> covered;  ///< by a sync
    Done done;
  };
  void submit(Write write, Done done);
  static void apply(const Write& write, Remains& to);
  void apply_some(const Write& write, Remains& to);

  std::mt19937 random_;
  std::uint64_t next_ = 0;
  std::vector<Remains> live_, durable_;
  std::vector<Write> pending_;  ///< not durable, in order of submission
  std::vector<Operation> in_flight_;
};

inline PowerCutMedia::PowerCutMedia(std::uint32_t paths, Bytes metadata, std::size_t pieces, std::uint32_t seed)
    : random_(seed), live_(paths, {std::vector<std::byte>(metadata), std::vector<Hash>(pieces)}), durable_(live_) {}

inline void PowerCutMedia::write(std::uint32_t path, Bytes offset, std::span<const std::byte> bytes, Done done) {
  if (offset % 4096 != 0 || bytes.size() % 4096 != 0) wrong = "a write that is not aligned";
  if (path == bad_path) {
    return done(std::make_exception_ptr(Error(ErrorCode::io, "this path takes no writes")));
  }
  submit({next_, path, false, offset, {bytes.begin(), bytes.end()}, 0}, std::move(done));
}

inline void PowerCutMedia::write_piece(const storage::Place& place, Hash tag, Done done) {
  submit({next_, place.path, true, place.piece, {}, tag}, std::move(done));
}

inline void PowerCutMedia::submit(Write write, Done done) {
  for (const Write& other : pending_) {
    if (other.completed || other.path != write.path || other.data != write.data) continue;
    const Bytes end = write.at + std::max<Bytes>(1, write.bytes.size());
    const Bytes other_end = other.at + std::max<Bytes>(1, other.bytes.size());
    if (write.at < other_end && other.at < end) wrong = "two writes to one place at a time";
  }
  write.id = next_++;
  in_flight_.push_back({false, write.id, write.path, {}, std::move(done)});
  pending_.push_back(std::move(write));
}

inline void PowerCutMedia::sync(std::uint32_t path, Done done) {
  Operation operation{true, 0, path, {}, std::move(done)};
  for (const Write& write : pending_) {
    if (write.completed && write.path == path && !lying_syncs) operation.covered.insert(write.id);
  }
  in_flight_.push_back(std::move(operation));
}

inline void PowerCutMedia::read(std::uint32_t path, Bytes offset, std::span<std::byte> bytes) {
  RemainsMedia(live_).read(path, offset, bytes);
}

inline void PowerCutMedia::apply(const Write& write, Remains& to) {
  if (write.data) {
    to.pieces[write.at] = write.tag;
  } else {
    std::copy(write.bytes.begin(), write.bytes.end(), to.metadata.begin() + std::ptrdiff_t(write.at));
  }
}

/// Any sectors of it; a piece that is torn holds nothing anyone wrote.
inline void PowerCutMedia::apply_some(const Write& write, Remains& to) {
  const unsigned fate = random_() % 3;
  if (fate == 0) return;
  if (fate == 1) return apply(write, to);
  if (write.data) {
    to.pieces[write.at] = random_();
    return;
  }
  for (Bytes at = 0; at < write.bytes.size(); at += 512) {
    if (random_() % 2 == 0) std::memcpy(to.metadata.data() + write.at + at, write.bytes.data() + at, 512);
  }
}

inline void PowerCutMedia::complete_one() {
  const std::size_t which = random_() % in_flight_.size();
  Operation operation = std::move(in_flight_[which]);
  in_flight_.erase(in_flight_.begin() + std::ptrdiff_t(which));
  if (operation.is_sync) {
    for (const Write& write : pending_) {
      if (operation.covered.contains(write.id)) apply(write, durable_[write.path]);
    }
    std::erase_if(pending_, [&](const Write& write) { return operation.covered.contains(write.id); });
  } else {
    const auto it =
        std::find_if(pending_.begin(), pending_.end(), [&](const Write& write) { return write.id == operation.write; });
    it->completed = true;
    apply(*it, live_[it->path]);
  }
  operation.done(nullptr);
}

inline void PowerCutMedia::cut(Fate fate, std::vector<Remains>& out) {
  out = durable_;
  for (const Write& write : pending_) {
    if (fate == Fate::everything) apply(write, out[write.path]);
    if (fate == Fate::any) apply_some(write, out[write.path]);
  }
}

inline void PowerCutMedia::kill() {
  // The volume's lock outlives what is in flight, so nothing is done after another process has taken over.
  std::erase_if(pending_, [&](const Write& write) { return !write.completed && random_() % 2 == 0; });
  for (Write& write : pending_) {
    if (!write.completed) apply(write, live_[write.path]);
    write.completed = true;
  }
  for (Operation& operation : std::exchange(in_flight_, {})) operation.done(nullptr);
}

inline void PowerCutMedia::become(const std::vector<Remains>& remains) {
  durable_ = remains;
  live_ = durable_;
  pending_.clear();
}

}  // namespace spillway::journal::testing
