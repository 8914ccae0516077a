#include "spillway/plan/saving.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace spillway::plan {
namespace {

constexpr Bytes kHeader = 512;          ///< of a tensor in the headers of all files of a checkpoint, at most
constexpr Bytes kManifestPiece = 64;    ///< of a piece in a manifest
constexpr Bytes kManifestChunk = 256;   ///< of a chunk in a manifest
constexpr Bytes kFileSystemShare = 64;  ///< one part of so many is what a file system keeps for itself

Bytes adapter_bytes(const state::Layout& layout) {
  Bytes out = 0;
  for (const auto& chunk : layout.chunks()) out += has_state(chunk.training) ? chunk.values() * sizeof(float) : 0;
  return out;
}

/// Weight groups of all chunks, or of those alone that are trainable.
Bytes weights_of(const Description& description, const state::Layout& layout, bool trainable) {
  Bytes out = 0;
  for (const auto& chunk : layout.chunks()) {
    if (!trainable || has_state(chunk.training)) out += weight_bytes(description.rule(), chunk);
  }
  return out;
}

Bytes states_of(const Description& description, const state::Layout& layout) {
  Bytes out = 0;
  for (const auto& chunk : layout.chunks()) out += state_bytes(description.rule(), chunk);
  return out;
}

/// Bytes of a checkpoint.
struct Sizes {
  Bytes usual = 0, whole = 0;
};

/// The peak over all checkpoints that will be written, in the order in which they come and go.
class Course {
 public:
  Course(const Saving& saving, SavingNeed& out, const Sizes& sizes, Bytes transient)
      : saving_(saving), out_(out), sizes_(sizes), transient_(transient) {
    for (const auto bytes : saving.there) keep(bytes);
  }

  void run() {
    now_ = -static_cast<std::int64_t>(saving_.freed);
    for (std::uint32_t s = 0; s < saving_.saves; ++s) write();
    if (saving_.saves > 0 || saving_.copies)
      note(now_ + signed_of(saving_.small + (saving_.copies ? out_.weights : 0)));
    out_.bytes += saving_.beside;
    out_.bytes += out_.bytes / kFileSystemShare;
  }

 private:
  static std::int64_t signed_of(Bytes bytes) { return static_cast<std::int64_t>(bytes); }
  void note(std::int64_t bytes) {
    out_.bytes = std::max(out_.bytes, static_cast<Bytes>(std::max<std::int64_t>(0, bytes)));
  }

  struct Kept {
    Bytes bytes = 0;
    bool whole = false;
  };

  /// The checkpoint of the next number.
  void keep(Bytes bytes) { kept_.push_back({bytes, is_whole(number_++)}); }

  [[nodiscard]] bool is_whole(std::uint32_t number) const {
    return sizes_.usual == sizes_.whole || std::ranges::binary_search(saving_.whole, number);
  }

  void write() {
    const auto bytes = is_whole(number_) ? sizes_.whole : sizes_.usual;
    keep(bytes);
    out_.checkpoint = std::max(out_.checkpoint, bytes);
    out_.at_once = std::max(out_.at_once, static_cast<std::uint32_t>(kept_.size()));
    now_ += signed_of(bytes);
    note(now_ + signed_of(transient_));
    if (saving_.limit && kept_.size() > std::max(1U, *saving_.limit)) remove_older(std::max(1U, *saving_.limit));
  }

  /// Keeps the newest `limit`, and the newest one that stands alone.
  void remove_older(std::uint32_t limit) {
    const auto newest = kept_.end() - limit;
    const bool is_among = std::ranges::find(newest, kept_.end(), true, &Kept::whole) != kept_.end();
    const auto older = std::make_reverse_iterator(newest);
    const auto stays = is_among ? kept_.rend() : std::ranges::find(older, kept_.rend(), true, &Kept::whole);
    std::vector<Kept> left(newest, kept_.end());
    if (stays != kept_.rend()) left.insert(left.begin(), *stays);
    for (const auto& it : kept_) now_ -= signed_of(it.bytes);
    for (const auto& it : left) now_ += signed_of(it.bytes);
    kept_ = std::move(left);
  }

  const Saving& saving_;
  SavingNeed& out_;
  const Sizes sizes_;
  const Bytes transient_;  ///< beside a checkpoint while it is written
  std::uint32_t number_ = 0;
  std::vector<Kept> kept_;
  std::int64_t now_ = 0;  ///< bytes that the file system has lost so far
};

Bytes round_to_pieces(Bytes bytes) {
  return round_down(bytes, 1 * MiB);
}

const FileSystem* of_output(const Budget& budget) {
  const auto system = std::ranges::find(budget.file_systems, true, &FileSystem::output);
  return system == budget.file_systems.end() ? nullptr : &*system;
}

std::string in_words(const Budget& budget, const SavingNeed& saving) {
  const auto& asked = *budget.saving;
  return text("saving takes ", human(saving.bytes), " there (up to ", saving.at_once,
              saving.at_once == 1 ? " checkpoint" : " checkpoints", " at once of ", asked.whole.empty() ? "" : "up to ",
              human(saving.checkpoint), " each, ",
              asked.copies ? "the final model beside them" : "the final model as links to the last", ")");
}

std::string advice(const Budget& budget, const SavingNeed& saving) {
  const auto& asked = *budget.saving;
  std::string out = "It would fit with an output_dir on another file system";
  if (saving.at_once > 1) out += asked.limit ? ", with a smaller --save_total_limit" : ", with --save_total_limit 1";
  if (asked.saves > 1) out += ", with larger --save_steps";
  if (asked.saves > 1 && !asked.whole.empty()) out += " or --save_whole_steps";
  const bool may_omit_state = !asked.model_only && asked.whole.empty();
  if (may_omit_state && saving.checkpoint > 2 * saving.weights) out += ", with --save_only_model";
  return out;
}

[[noreturn]] void refuse_saving(const Budget& budget, const SavingNeed& saving, const FileSystem& system) {
  throw Error(ErrorCode::does_not_fit,
              text("does not fit on the file system of output_dir, ", system.name, ": ", in_words(budget, saving),
                   ", and ", human(system.free), " are free. ", advice(budget, saving), ", or with more space there"));
}

[[noreturn]] void refuse_both(const Budget& budget, const SavingNeed& saving, const FileSystem& system, Bytes volumes) {
  std::string names, on;
  for (const auto p : system.paths) names += text(names.empty() ? "" : ", ", budget.paths[p].name);
  auto out = text("does not fit on the file system ", system.name, ": the volumes of ", names, " need ", human(volumes),
                  " there");
  if (system.output) out += text(", ", in_words(budget, saving), " since output_dir lies there, too");
  out += text(", and ", human(system.free), " are free. ");
  out += system.output ? advice(budget, saving) : "It would fit with more space there";
  throw Error(ErrorCode::does_not_fit,
              out + ", with a --storage DIR of another file system, or with more DRAM (--dram_budget)");
}

}  // namespace

SavingNeed saving_need(const Description& description, const state::Layout& layout, const Saving& saving,
                       bool manifests) {
  const auto headers = layout.tensors().size() * kHeader;
  SavingNeed out;
  out.weights = (saving.adapters ? adapter_bytes(layout) : weights_of(description, layout, false)) + headers;
  Sizes sizes{.usual = out.weights + saving.small, .whole = out.weights + saving.small};
  if (!saving.model_only) {
    const auto state = states_of(description, layout);
    const auto pieces = (weights_of(description, layout, false) + state) / MiB + layout.chunks().size() * 2;
    sizes.whole += state + headers + (saving.adapters ? weights_of(description, layout, true) : 0);
    if (manifests) {
      sizes.usual += pieces * kManifestPiece + layout.chunks().size() * kManifestChunk;
    } else {
      sizes.usual = sizes.whole;
    }
  }
  out.checkpoint = sizes.usual;
  Course(saving, out, sizes, saving.converted ? out.weights : 0).run();
  return out;
}

Budget leave_room(const Budget& budget, const SavingNeed& saving, const StorageNeed& need, Bytes overhead) {
  auto out = budget;
  const auto* output = of_output(budget);
  if (output != nullptr && saving.bytes > output->free) refuse_saving(budget, saving, *output);
  const FileSystem* narrow = nullptr;
  Bytes after = 0;
  for (const auto& system : budget.file_systems) {
    const auto room = system.free - (system.output ? saving.bytes : 0);
    Bytes asked = 0;
    for (const auto p : system.paths) asked += budget.paths[p].capacity;
    if (asked <= room) continue;
    narrow = narrow == nullptr || system.output ? &system : narrow;
    for (const auto p : system.paths) {
      const auto share = static_cast<double>(budget.paths[p].capacity) / static_cast<double>(asked);
      out.paths[p].capacity = round_to_pieces(static_cast<Bytes>(static_cast<double>(room) * share));
    }
  }
  for (const auto& path : out.paths) after += path.capacity - std::min(path.capacity, overhead);
  const auto least = need.bytes() - (need.spare - std::min(need.spare, need.least_spare));
  if (narrow != nullptr && least > after) {
    refuse_both(budget, saving, *narrow, least + narrow->paths.size() * overhead);
  }
  return out;
}

}  // namespace spillway::plan
