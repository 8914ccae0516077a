#include "spillway/execute/redeal.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/base/interrupt.h"
#include "spillway/execute/read_back.h"
#include "spillway/execute/read_only.h"
#include "spillway/network/exchange.h"

namespace spillway::execute {
namespace {

/// Plan of an old shard's process, as far as its volumes contain it.
class OldProcess {
 public:
  OldProcess(const RunPlan& plan, const state::World& world)
      : plan_(plan), description_(of_world(plan.description, world)), ownership_(description_.ownership(plan.layout)) {}
  OldProcess(const OldProcess&) = delete;
  OldProcess& operator=(const OldProcess&) = delete;

  [[nodiscard]] RunPlan run_plan() const { return plan_.adapt_to(description_, ownership_); }
  [[nodiscard]] const state::Ownership& ownership() const { return ownership_; }

 private:
  static plan::Description of_world(plan::Description description, const state::World& world) {
    description.world = world;
    return description;
  }
  const RunPlan plan_;
  const plan::Description description_;
  const state::Ownership ownership_;
};

VolumeSettings settings_of(const VolumeSettings& own, const ShardVolumes& shard) {
  auto out = own;
  out.places = shard.places;
  out.world = shard.world;
  out.votes = nullptr;
  out.overwrite = out.erase = false;
  out.keep = true;
  return out;
}

/// The ranks that have a chunk.
std::vector<std::size_t> ranks_of(const state::Ownership& ownership, std::size_t chunk) {
  if (const auto owner = ownership.owner(chunk)) return {*owner};
  std::vector<std::size_t> out(ownership.world().size);
  for (std::size_t rank = 0; rank < out.size(); ++rank) out[rank] = rank;
  return out;
}

/// Which rank reads which shard.
class Readers {
 public:
  explicit Readers(std::span<const std::size_t> readers) : readers_(readers.begin(), readers.end()) {
    for (std::size_t shard = 0; shard < readers_.size(); ++shard) first_.emplace(readers_[shard], shard);
  }
  /// The shard of which `rank` is given a chunk: that of its owner, or, where every shard has it, the first that the
  /// rank reads itself.
  [[nodiscard]] std::size_t shard_for(std::optional<std::size_t> owner, std::size_t rank) const {
    if (owner) return *owner;
    const auto own = first_.find(rank);
    if (own != first_.end()) return own->second;
    return std::next(first_.begin(), static_cast<std::ptrdiff_t>(rank % first_.size()))->second;
  }
  [[nodiscard]] std::size_t rank(std::size_t shard) const { return readers_[shard]; }

 private:
  const std::vector<std::size_t> readers_;
  std::map<std::size_t, std::size_t> first_;  ///< of each rank that reads: the first of its shards
};

}  // namespace

journal::NewestStep newest_step(const RunPlan& plan, const VolumeSettings& volumes, const ShardVolumes& shard) {
  const OldProcess old(plan, shard.world);
  return newest_step(old.run_plan(), settings_of(volumes, shard));
}

std::vector<std::vector<Delivery>> deliveries(const state::Layout& layout, const state::Ownership& before,
                                              const state::Ownership& now, std::span<const std::size_t> readers) {
  const Readers reading(readers);
  std::map<std::pair<std::size_t, std::size_t>, Delivery> all;  // by shard and chunk: a shard is opened once
  for (std::size_t chunk = 0; chunk < layout.chunks().size(); ++chunk) {
    for (const auto rank : ranks_of(now, chunk)) {
      const auto shard = reading.shard_for(before.owner(chunk), rank);
      auto& it = all.try_emplace({shard, chunk}, Delivery{shard, chunk, reading.rank(shard), {}}).first->second;
      it.to.push_back(rank);
    }
  }
  std::vector<std::vector<Delivery>> out;
  std::map<std::size_t, std::size_t> rounds;  // of each reader, those that it has a chunk in
  for (auto& [key, delivery] : all) {
    const auto round = rounds[delivery.reader]++;
    if (round == out.size()) out.emplace_back();
    out[round].push_back(std::move(delivery));
  }
  return out;
}

/// An old shard that this process reads.
struct Redeal::Shard {
  Shard(const Redeal& of, std::size_t shard)
      : number(shard),
        old(of.plan_, {of.options_.readers.size(), shard}),
        back(old.run_plan(), settings_of(of.volumes_, {old.ownership().world(), of.options_.places.at(shard)}),
             of.threads_, std::nullopt, of.options_.step, of.work_) {}
  const std::size_t number;
  const OldProcess old;
  ReadBack back;
};

Redeal::Redeal(const RunPlan& plan, VolumeSettings volumes, unsigned threads, const RedealOptions& options,
               std::span<std::byte> work)
    : plan_(plan), volumes_(std::move(volumes)), threads_(threads), options_(options) {
  const auto each = round_up(largest_chunk_bytes(plan.description.rule(), plan.layout), 4096);
  arena_ = memory::Arena(work.size() < 2 * each ? 2 * each : 0);
  if (arena_.size() > 0) work = arena_.span();
  outgoing_ = work.first(each);
  incoming_ = work.subspan(each, each);
  work_ = work.subspan(2 * each);
}

Redeal::~Redeal() = default;

Recovery Redeal::run(state::ChunkStore& chunks) {
  const OldProcess first(plan_, {options_.readers.size(), 0});
  Recovery out;
  {
    const Clocked clocked(out.seconds);
    share_commit(out);
    for (const auto& round : deliveries(plan_.layout, first.ownership(), plan_.ownership, options_.readers)) {
      throw_if_interrupted();
      for (const auto& it : round) {
        if (it.reader == rank()) read(it);
      }
      for (const auto& it : round) hand_over(it, chunks);
    }
    shard_.reset();
  }
  out.chunks = plan_.ownership.mine().size();
  out.replayed = replayed_;
  out.replayed_steps = replayed_steps_;
  return out;
}

void Redeal::open(std::size_t shard) {
  if (shard_ && shard_->number == shard) return;
  shard_.reset();
  shard_ = std::make_unique<Shard>(*this, shard);
  replayed_ += shard_->back.recovery().replayed;
  replayed_steps_ = std::max(replayed_steps_, shard_->back.recovery().replayed_steps);
}

/// All processes are told what the commit of the step says.
void Redeal::share_commit(Recovery& recovery) {
  const auto reader = options_.readers.front();
  const auto share = [&](std::span<std::byte> bytes) {
    if (plan_.network != nullptr) network::broadcast(*plan_.network, reader, bytes);
  };
  if (reader == rank()) {
    open(0);
    const auto& before = shard_->back.recovery();
    recovery.step = before.step;
    recovery.applied = before.applied;
    recovery.updates = before.updates;
    recovery.payload = before.payload;
  }
  recovery.has_step = true;
  std::array<std::uint64_t, 4> head{recovery.step, recovery.applied, static_cast<std::uint64_t>(recovery.updates),
                                    recovery.payload.size()};
  share(std::as_writable_bytes(std::span(head)));
  recovery.step = head[0];
  recovery.applied = head[1];
  recovery.updates = static_cast<std::int64_t>(head[2]);
  recovery.payload.resize(head[3]);
  share(std::as_writable_bytes(std::span(recovery.payload)));
}

void Redeal::read(const Delivery& delivery) {
  open(delivery.shard);
  const auto& it = plan_.layout.chunks()[delivery.chunk];
  auto* state = outgoing_.data() + weight_bytes(plan_.description.rule(), it);
  shard_->back.load(delivery.chunk, outgoing_.data(), has_state(it.training) ? state : nullptr);
}

void Redeal::hand_over(const Delivery& delivery, state::ChunkStore& chunks) {
  const bool reads = delivery.reader == rank(), takes = std::ranges::find(delivery.to, rank()) != delivery.to.end();
  if (!reads && !takes) return;
  const auto& it = plan_.layout.chunks()[delivery.chunk];
  const auto weights = weight_bytes(plan_.description.rule(), it);
  const auto bytes = (reads ? outgoing_ : incoming_).first(weights + state_bytes(plan_.description.rule(), it));
  std::vector<std::size_t> peers{delivery.reader};
  if (reads) {
    peers = delivery.to;
    std::erase(peers, rank());
  }
  if (!peers.empty()) network::move_bytes(*plan_.network, peers, reads, bytes);
  if (takes) chunks.store(delivery.chunk, bytes.data(), has_state(it.training) ? bytes.data() + weights : nullptr);
}

}  // namespace spillway::execute
