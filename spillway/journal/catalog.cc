#include "spillway/journal/catalog.h"

#include <algorithm>
#include <utility>

namespace spillway::journal {
namespace {

bool same(std::span<const Piece> a, std::span<const Piece> b) {
  // A place belongs to one version at a time.
  return !a.empty() && !b.empty() && a.front().place == b.front().place;
}

}  // namespace

Catalog::Catalog(const JournalSpec& spec)
    : chunks(spec.chunks.size()), gradients(spec.gradients.size()), spec_(spec), feeding_(spec.chunks.size()) {
  for (std::uint32_t g = 0; g < spec.gradients.size(); ++g) {
    for (std::uint32_t c = 0; c < spec.gradients[g].chunks; ++c)
      feeding_[spec.gradients[g].first_chunk + c].push_back(g);
  }
}

void Catalog::adopt_snapshot(const RecoveredObject& snapshot) {
  const StoredObject& stored = snapshot.stored;
  if (spec_.chunks[stored.object].elsewhere) return;
  Version* version = find(stored.object, stored.pieces);
  if (version == nullptr) version = make(stored.version, snapshot.generation, stored.pieces);
  version->live = true;
  version->generation = snapshot.generation;
  version->slot = snapshot.slot;
  version->recorded = true;
  chunks[stored.object].trusted = version;
}

void Catalog::adopt(const Recovered& recovered) {
  for (const RecoveredObject& snapshot : recovered.snapshots) adopt_snapshot(snapshot);
  for (const RecoveredObject& gradient : recovered.gradients) {
    const StoredObject& stored = gradient.stored;
    Version* version = make(stored.version, gradient.generation, stored.pieces);
    version->slot = gradient.slot;
    version->recorded = true;
    gradients[stored.object].held.push_back(version);
  }
}

void Catalog::take_back(std::uint32_t chunk, const StoredObject& snapshot, std::uint32_t generation) {
  if (spec_.chunks[chunk].elsewhere) return;
  Chunk& c = chunks[chunk];
  Version* version = find(chunk, snapshot.pieces);
  if (version == nullptr) version = make(snapshot.version, generation, snapshot.pieces);
  const std::uint32_t trusted_slot = c.trusted == nullptr ? 1 : c.trusted->slot;
  if (version == c.trusted) {
    // Its old record counts until the new line has begun; the places stay.
    c.trusted = make(version->version, version->generation, {});
    c.trusted->slot = trusted_slot;
  }
  version->live = true;
  version->recorded = false;
  version->generation = generation;
  version->slot = 1 - trusted_slot;
  c.recording = version;
}

Version* Catalog::make(std::uint64_t version, std::uint32_t generation, std::span<const Piece> pieces) {
  if (spare_.empty()) {
    all_.push_back(std::make_unique<Version>());
    spare_.reserve(all_.capacity());
    spare_.push_back(all_.back().get());
  }
  Version* out = spare_.back();
  spare_.pop_back();
  std::vector<Piece> memory = std::move(out->pieces);
  memory.assign(pieces.begin(), pieces.end());
  *out = {};
  out->version = version;
  out->generation = generation;
  out->pieces = std::move(memory);
  for (const Piece& piece : pieces) out->paths |= PathSet{1} << piece.place.path;
  return out;
}

void Catalog::retire(Version* version) {
  version->live = false;
  settle(version);
}

void Catalog::record_ended(ObjectKind kind, std::uint32_t object, Version* version) {
  --version->writing;
  if (kind == ObjectKind::gradient && version->writing == 0) std::erase(gradients[object].ending, version);
  settle(version);
}

void Catalog::settle(Version* version) {
  if (!version->live && version->pins == 0 && version->writing == 0) released_.push_back(version);
}

template <class Which>
void Catalog::drop(std::uint32_t gradient, const Which& which) {
  Gradient& g = gradients[gradient];
  std::erase_if(g.held, [&](Version* v) {
    if (!which(*v)) return false;
    if (v->writing != 0) g.ending.push_back(v);
    retire(v);
    return true;
  });
}

void Catalog::trust(std::uint32_t chunk) {
  Chunk& c = chunks[chunk];
  Version* before = c.trusted;
  c.trusted = c.recording;
  c.recording = nullptr;
  drop_written_before(chunk, c.trusted->version + 1);
  if (before != nullptr) retire(before);
  for (const std::uint32_t gradient : feeding_[chunk]) {
    if (gradients[gradient].held.empty()) continue;
    const std::uint64_t needless = floor(gradient);
    drop(gradient, [&](const Version& v) { return v.version <= needless; });
  }
}

void Catalog::drop_written_before(std::uint32_t chunk, std::uint64_t version) {
  std::erase_if(chunks[chunk].written, [&](Version* v) {
    if (v->version >= version) return false;
    retire(v);
    return true;
  });
}

void Catalog::drop_gradient(std::uint32_t gradient, std::uint64_t version) {
  drop(gradient, [&](const Version& v) { return v.version == version; });
}

void Catalog::drop_unused_gradients(const Commit& commit) {
  for (std::uint32_t g = 0; g < gradients.size(); ++g) {
    if (!commit.used(g)) drop_gradient(g, commit.step);
  }
}

void Catalog::drop_gradients_but_of(std::uint32_t generation) {
  for (std::uint32_t g = 0; g < gradients.size(); ++g) {
    drop(g, [&](const Version& v) { return v.generation != generation; });
  }
}

std::uint32_t Catalog::free_slot(std::uint32_t gradient, std::uint32_t slots) const {
  const Gradient& g = gradients[gradient];
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const auto has = [&](const Version* v) { return v->slot == slot; };
    if (std::none_of(g.held.begin(), g.held.end(), has) && std::none_of(g.ending.begin(), g.ending.end(), has)) {
      return slot;
    }
  }
  return Version::kNoSlot;
}

std::uint64_t Catalog::oldest_trusted() const {
  std::uint64_t out = ~std::uint64_t{0};
  for (std::uint32_t c = 0; c < chunks.size(); ++c) {
    if (spec_.chunks[c].elsewhere) continue;
    if (chunks[c].trusted == nullptr) return 0;
    if (!spec_.chunks[c].constant) out = std::min(out, chunks[c].trusted->version);
  }
  return out;
}

NeededLine Catalog::needed_line() const {
  NeededLine out{.oldest = oldest_trusted()};
  for (std::uint32_t c = 0; c < chunks.size(); ++c) {
    const Version* snapshot = chunks[c].trusted;
    if (!spec_.chunks[c].constant || snapshot == nullptr) continue;
    if (std::ranges::find(out.generations, snapshot->generation) != out.generations.end()) continue;
    out.generations.push_back(snapshot->generation);
  }
  return out;
}

bool Catalog::is_of(std::uint32_t chunk, const Version* version, std::uint64_t first, std::uint64_t last) const {
  if (spec_.chunks[chunk].elsewhere) return true;
  if (version == nullptr) return false;
  return version->version <= last && (spec_.chunks[chunk].constant || first <= version->version);
}

std::uint64_t Catalog::floor(std::uint32_t gradient) const {
  const GradientSpec& spec = spec_.gradients[gradient];
  std::uint64_t out = ~std::uint64_t{0};
  for (std::uint32_t c = spec.first_chunk; c < spec.first_chunk + spec.chunks; ++c) {
    if (spec_.chunks[c].elsewhere) continue;
    if (chunks[c].trusted == nullptr) return 0;
    out = std::min(out, chunks[c].trusted->version);
  }
  return out;
}

Version* Catalog::find(std::uint32_t chunk, std::span<const Piece> pieces) const {
  const Chunk& c = chunks[chunk];
  const auto is = [&](const Version* v) { return v != nullptr && same(v->pieces, pieces); };
  if (is(c.trusted)) return c.trusted;
  if (is(c.recording)) return c.recording;
  for (const std::vector<Version*>* list : {&c.written, &c.pinned}) {
    const auto it = std::find_if(list->begin(), list->end(), is);
    if (it != list->end()) return *it;
  }
  return nullptr;
}

void Catalog::pin(const Manifest& manifest) {
  for (const StoredObject& snapshot : manifest.snapshots) {
    if (!snapshot.pieces.empty()) pin(snapshot.object, snapshot.version, snapshot.pieces);
  }
}

void Catalog::unpin(const Manifest& manifest) {
  for (const StoredObject& snapshot : manifest.snapshots) {
    if (!snapshot.pieces.empty()) unpin(snapshot.object, snapshot.pieces);
  }
}

void Catalog::pin(std::uint32_t chunk, std::uint64_t version, std::span<const Piece> pieces) {
  Version* found = find(chunk, pieces);
  if (found == nullptr) {
    found = make(version, 0, pieces);
    found->live = false;
  }
  if (found->pins++ == 0) chunks[chunk].pinned.push_back(found);
}

void Catalog::unpin(std::uint32_t chunk, std::span<const Piece> pieces) {
  Version* found = find(chunk, pieces);
  if (--found->pins != 0) return;
  std::erase(chunks[chunk].pinned, found);
  settle(found);
}

std::vector<Version*> Catalog::take_released() {
  return std::exchange(released_, {});
}

}  // namespace spillway::journal
