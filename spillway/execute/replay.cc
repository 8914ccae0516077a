#include "spillway/execute/replay.h"

#include <algorithm>
#include <cstring>

#include "spillway/base/error.h"
#include "spillway/execute/store.h"
#include "spillway/plan/schedule.h"

namespace spillway::execute {
namespace {

Bytes bytes_of(const journal::StoredObject& object) {
  Bytes sum = 0;
  for (const auto& piece : object.pieces) sum += piece.bytes;
  return sum;
}

}  // namespace

Replay::Replay(const Parts& parts, const journal::Commit& commit)
    : parts_(parts),
      ids_(parts.description, parts.layout),
      table_(parts.layout.embedding()),
      update_(parts.layout, parts.description.rule()),
      commit_(&commit) {}

Replay::Replay(const Parts& parts, const journal::Recovered& recovered) : Replay(parts, recovered.newest) {
  for (const auto& snapshot : recovered.snapshots) snapshots_.push_back(&snapshot.stored);
  for (const auto& it : recovered.commits) commits_.push_back(&it.commit);
  for (const auto& it : recovered.gradients) gradients_[{it.stored.object, it.stored.version}] = &it.stored;
}

Replay::Replay(const Parts& parts, const journal::Manifest& manifest) : Replay(parts, manifest.commit) {
  for (const auto& snapshot : manifest.snapshots) snapshots_.push_back(&snapshot);
}

std::size_t Replay::missing(std::size_t chunk) const {
  if (!is_trainable(parts_.layout.chunks()[chunk].training)) return 0;
  const auto version = snapshots_[chunk]->version;
  return static_cast<std::size_t>(
      std::ranges::count_if(commits_, [&](const auto* commit) { return commit->step > version; }));
}

Bytes Replay::scratch() const {
  const auto gradient = largest_grad_bytes(parts_.description.rule(), parts_.layout);
  Bytes rows = 0;
  std::map<std::uint64_t, Bytes> of_step;
  for (const auto& [which, object] : gradients_) {
    if (which.first >= ids_.find_sparse(0)) rows = std::max(rows, of_step[which.second] += bytes_of(*object));
  }
  return gradient + rows;
}

void Replay::expect(const journal::StoredObject& object) {
  for (const auto& piece : object.pieces) journal::expect(*parts_.paths[piece.place.path], piece);
}

void Replay::expect_snapshot(std::size_t chunk) {
  expect(*snapshots_[chunk]);
}

Bytes Replay::read(const journal::StoredObject& object, std::uint32_t part, std::span<std::byte> memory,
                   const std::string& what) {
  std::vector<storage::Place> places;
  Bytes bytes = 0;
  for (const auto& piece : object.pieces) {
    if (piece.part != part) continue;
    places.push_back(piece.place);
    bytes += piece.bytes;
  }
  if (places.empty()) throw Error(ErrorCode::corrupt, text("the record of the ", what, " names no piece of it"));
  if (bytes > memory.size()) {
    throw Error(ErrorCode::corrupt, text("the record of the ", what, " names ", bytes, " bytes of ", memory.size()));
  }
  parts_.pool.run(
      {.direction = storage::Direction::read, .memory = memory.data(), .bytes = bytes, .places = places, .what = what});
  return bytes;
}

void Replay::load(std::size_t chunk, std::byte* weight, std::byte* state, std::span<std::byte> scratch) {
  const auto& it = *snapshots_[chunk];
  expect(it);
  const auto rule = parts_.description.rule();
  const auto weights = weight_bytes(rule, parts_.layout.chunks()[chunk]);
  const auto states = state_bytes(rule, parts_.layout.chunks()[chunk]);
  if (weight != nullptr)
    read(it, journal::kWeightPart, {weight, weights}, name_of(parts_.layout, plan::ObjectKind::weight, chunk));
  if (state != nullptr && states > 0) {
    read(it, journal::kStatePart, {state, states}, name_of(parts_.layout, plan::ObjectKind::state, chunk));
  }
  if (missing(chunk) == 0) return;
  for (const auto* commit : commits_) {
    if (commit->step > it.version) update(chunk, *commit, weight, state, scratch);
  }
}

void Replay::update(std::size_t chunk, const journal::Commit& commit, std::byte* weight, std::byte* state,
                    std::span<std::byte> scratch) {
  const auto& it = parts_.layout.chunks()[chunk];
  const auto bytes = grad_bytes(parts_.description.rule(), it);
  auto* grad = scratch.data();
  if (plan::has_dense_grad(parts_.description, parts_.layout, static_cast<plan::Index>(chunk))) {
    const auto& object = gradient(ids_.find_chunk(chunk), commit.step);
    expect(object);
    read(object, 0, scratch.first(bytes),
         text(name_of(parts_.layout, plan::ObjectKind::gradient, chunk), " of step ", commit.step));
  } else {
    std::memset(grad, 0, bytes);
  }
  if (table_ != nullptr && &parts_.layout.blocks()[it.block] == table_) {
    const auto rows = read_sparse(commit, scratch.subspan(bytes));
    patch_sparse(*table_, parts_.description.weight_dtype, it, grad, rows);
  }
  auto step = optim::decode(*parts_.description.optimizer, commit.update);
  step.seed = parts_.description.seed;
  const state::GroupPointers groups{weight, state, grad};
  update_.prepare(chunk, groups);
  for (std::size_t part = 0; part < update_.parts(chunk); ++part) {
    parts_.thread_pool.run(update_.tiles(chunk, part),
                           [&](std::size_t tile) { update_.run(chunk, groups, step, part, tile); });
  }
  update_.finish(chunk, groups);
}

const journal::StoredObject& Replay::gradient(std::uint32_t number, std::uint64_t step) const {
  const auto at = gradients_.find({number, step});
  if (at != gradients_.end()) return *at->second;
  throw Error(ErrorCode::corrupt, text("gradient ", number, " of step ", step, " is needed, but no record names it"));
}

std::span<std::byte> Replay::read_sparse(const journal::Commit& commit, std::span<std::byte> memory) {
  Bytes bytes = 0;
  for (std::size_t part = 0; commit.used(ids_.find_sparse(part)); ++part) {
    const auto& object = gradient(ids_.find_sparse(part), commit.step);
    if (bytes + bytes_of(object) > memory.size()) {
      throw Error(ErrorCode::internal, text("no room for the rows of step ", commit.step));
    }
    expect(object);
    bytes += read(object, 0, memory.subspan(bytes), text("gradient of the embedding's rows of step ", commit.step));
  }
  return memory.first(bytes);
}

}  // namespace spillway::execute
