#include "spillway/execute/read_back.h"

#include <algorithm>
#include <cstring>

#include "spillway/base/error.h"
#include "spillway/execute/manifest_file.h"
#include "spillway/execute/names.h"
#include "spillway/execute/read_only.h"
#include "spillway/execute/tensor_parts.h"
#include "spillway/execute/tensors.h"
#include "spillway/state/convert.h"

namespace spillway::execute {
ReadBack::ReadBack(const RunPlan& plan, VolumeSettings volumes, unsigned threads,
                   const std::optional<std::filesystem::path>& checkpoint, std::int64_t at_most,
                   std::span<std::byte> work)
    : plan_(plan), thread_pool_(std::make_unique<ThreadPool>(std::max(1U, threads))) {
  ReadOnly opened(plan, volumes, !checkpoint || !without_records(volumes));
  const ObjectNames names(plan.description, plan.layout);
  if (checkpoint) {
    manifest_ = read_manifest(*checkpoint, opened.layout.identity(), *opened.check, volumes.world);
  } else {
    recovered_ = opened.recover(names, at_most);
    if (!recovered_.found) {
      throw Error(ErrorCode::bad_input, "storage: no step of this run is durable there; name a checkpoint");
    }
  }
  paths_ = std::move(opened.paths);
  path_pointers_ = std::move(opened.pointers);
  pool_ = std::make_unique<storage::Pool>(pool_paths(paths_, plan_.rates));
  const Replay::Parts parts{plan_.description, plan_.layout, path_pointers_, *pool_, *thread_pool_};
  for (const auto place : recovered_.places) pool_->claim(place);
  if (manifest_) {
    for (const auto place : journal::places_of({&*manifest_, 1})) pool_->claim(place);
    replay_.emplace(parts, *manifest_);
  } else {
    replay_.emplace(parts, recovered_);
  }
  const auto rule = plan_.description.rule();
  const auto scratch = round_up(largest_chunk_bytes(rule, plan_.layout), 4096);
  const auto needed = 2 * scratch + round_up(replay_->scratch(), 4096);
  arena_ = memory::Arena(work.size() < needed ? needed : 0);
  if (work.size() < needed) work = arena_.span();
  stream_ = work.first(scratch);
  chunk_ = work.subspan(scratch, scratch);
  replay_memory_ = work.subspan(2 * scratch);
  describe();
}

void ReadBack::describe() {
  recovery_.take(replay_->commit(), *plan_.description.optimizer);
  const auto& mine = plan_.ownership.mine();
  recovery_.chunks = mine.size();
  for (const auto c : mine) {
    recovery_.replayed += replay_->missing(c) > 0 ? 1 : 0;
    recovery_.replayed_steps = std::max(recovery_.replayed_steps, replay_->missing(c));
  }
}

void ReadBack::fetch(std::size_t tensor, std::uint64_t first, std::span<float> values) {
  const auto rule = plan_.description.rule();
  for_parts(plan_.layout, tensor, first, values.size(), [&](const state::Span& span, std::size_t chunk) {
    const auto& it = plan_.layout.chunks()[chunk];
    auto* weight = stream_.data();
    auto* state = weight + weight_bytes(rule, it);
    if (fetched_ != chunk) load(chunk, weight, has_state(it.training) ? state : nullptr);
    fetched_ = chunk;
    const auto fields = state::chunk_fields(rule.type, it, weight, state);
    state::from_chunk(fields, span.chunk_first, values.subspan(span.tensor_first - first, span.elements));
  });
}

state::ChunkStream ReadBack::stream() {
  fetched_ = ~std::size_t{0};
  return {plan_.layout, plan_.description.rule(), *this, stream_};
}

void ReadBack::save_weights(const std::filesystem::path& directory, const state::SaveOptions& options) {
  execute::save_weights(stream(), plan_.description, directory, options);
}

void ReadBack::save_state(const std::filesystem::path& directory) {
  execute::save_state(stream(), plan_.description, directory);
}

void ReadBack::load(std::size_t chunk, std::byte* weight, std::byte* state) {
  if (plan_.description.has(plan_.layout, plan_.layout.chunks()[chunk])) load_own(chunk, weight, state);
  share_chunk(plan_.description, plan_.layout, plan_.network, chunk, weight, state);
}

void ReadBack::load_own(std::size_t chunk, std::byte* weight, std::byte* state) {
  if (replay_->missing(chunk) == 0) return replay_->load(chunk, weight, state, {});
  auto* own = chunk_.data() + weight_bytes(plan_.description.rule(), plan_.layout.chunks()[chunk]);
  replay_->load(chunk, weight != nullptr ? weight : chunk_.data(), state != nullptr ? state : own, replay_memory_);
}

void ReadBack::store(std::size_t, const std::byte*, const std::byte*) {
  throw Error(ErrorCode::internal, "what was read back is not to be changed");
}

}  // namespace spillway::execute
