#include "spillway/optimizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "spillway/base/error.h"
#include "spillway/execute/chunk_update.h"
#include "spillway/execute/group_bank.h"
#include "spillway/execute/thread_pool.h"
#include "spillway/state/convert.h"
#include "spillway/state/layout.h"
#include "spillway/state/saved_state.h"
#include "spillway/storage/path.h"

namespace spillway {
namespace {

/// Large enough for drives and threads, small enough that a window of them is little memory.
constexpr std::uint64_t kChunkElements = 2 * 1024 * 1024;
/// With storage: states of less stay in memory. A drive would take as long for them as for a whole piece.
constexpr Bytes kLeastOnPath = storage::kExtentAlignment;

/// A chunk of a tensor, and where its state is.
struct Chunk {
  std::size_t tensor = 0;
  std::size_t part = 0;    ///< index into the parts
  std::size_t number = 0;  ///< in the part's layout
  std::size_t bank = 0;
  std::size_t group = 0;  ///< in the bank
};

/// The tensors of one compute type, each a block of its own.
struct Part {
  state::UpdateRule rule;
  std::vector<state::BlockSpec> blocks;
  std::optional<state::Layout> layout;
};

}  // namespace

class Optimizer::Impl {
 public:
  Impl(std::vector<OptimizerTensor> tensors, OptimizerSettings settings)
      : tensors_(std::move(tensors)), settings_(std::move(settings)), thread_pool_(settings_.threads) {
    check();
    lay_out();
    std::array<std::vector<Bytes>, 2> sizes;
    for (Chunk& chunk : chunks_) {
      const Bytes bytes = state::state_bytes(parts_[chunk.part].rule, layout_chunk(chunk));
      state_bytes_ += bytes;
      chunk.bank = !settings_.storage.empty() && bytes >= kLeastOnPath ? 1 : 0;
      chunk.group = sizes[chunk.bank].size();
      sizes[chunk.bank].push_back(bytes);
    }
    banks_[0] = execute::make_memory_bank(sizes[0]);
    if (!sizes[1].empty()) banks_[1] = open_paths(sizes[1]);
  }

  void step(std::span<const Update> updates) {
    std::array<std::vector<std::size_t>, 2> groups;
    std::array<std::vector<std::pair<const Chunk*, const Update*>>, 2> of_group;
    for (auto& list : of_group) list.resize(chunks_.size());
    for (const Update& update : updates) {
      for (const Chunk& chunk : chunks_of(update.tensor)) {
        groups[chunk.bank].push_back(chunk.group);
        of_group[chunk.bank][chunk.group] = {&chunk, &update};
      }
    }
    for (std::size_t bank : {1, 0}) {
      if (groups[bank].empty()) continue;
      banks_[bank]->pass(groups[bank], true, [&](std::size_t group, std::byte* memory) {
        const auto& [chunk, update] = of_group[bank][group];
        this->update(*chunk, *update, memory);
      });
    }
  }

  void set_master(std::size_t tensor, const std::byte* weight) {
    const auto type = rule_of(tensor).type;
    if (traits(type).remainder == 0) return;
    pass(tensor, true, [&](const state::Located& at) {
      state::set_masters(type, weight, at.span.remainder, at.span.n);
      weight += at.span.n * traits(type).bytes;
    });
  }

  std::vector<StateArray> arrays(std::size_t tensor) const {
    const auto& rule = rule_of(tensor);
    const std::uint64_t elements = tensors_[tensor].elements;
    std::vector<StateArray> out;
    if (const auto& type = traits(rule.type); type.remainder > 0)
      out.push_back({type.remainder_name, elements, type.remainder});
    const auto kept = state::moments_of(rule.state_format, elements < state::kUnquantisedBelow);
    for (std::size_t m = 0; m < rule.moments(); ++m) {
      out.push_back({rule.optimizer->fields[m], elements, traits(kept).bytes});
    }
    if (!traits(kept).is_scaled) return out;
    for (std::size_t m = 0; m < rule.moments(); ++m) {
      out.push_back({state::scale_name(rule.optimizer->fields[m]), state::scales_of(elements), sizeof(float)});
    }
    return out;
  }

  /// Calls copy(array, bytes before, memory, bytes) for every part of every array.
  template <class Copy>
  void transfer(std::size_t tensor, bool store, const Copy& copy) {
    const auto& rule = rule_of(tensor);
    std::array<Bytes, 5> done{};
    pass(tensor, store, [&](const state::Located& at) {
      std::size_t array = 0;
      const auto one = [&](std::byte* memory, Bytes bytes) {
        copy(array, done[array], memory, bytes);
        done[array++] += bytes;
      };
      if (at.span.remainder != nullptr) one(at.span.remainder, at.span.n * state::remainder_bytes(rule));
      for (std::size_t m = 0; m < rule.moments(); ++m)
        one(at.span.moments[m], at.span.n * traits(at.form.moments).bytes);
      if (!traits(at.form.moments).is_scaled) return;
      const Bytes scales = state::scales_of(at.span.n) * sizeof(float);
      for (std::size_t m = 0; m < rule.moments(); ++m) one(reinterpret_cast<std::byte*>(at.span.scales[m]), scales);
    });
  }

  const optim::Descriptor& optimizer() const noexcept { return *settings_.optimizer; }
  Bytes state_bytes() const noexcept { return state_bytes_; }
  const std::vector<std::string>& notices() const noexcept { return notices_; }

 private:
  void check() const {
    if (settings_.optimizer->scope != optim::Scope::element) {
      throw Error(ErrorCode::bad_input, text(settings_.optimizer->name,
                                             " updates whole matrices of a model's layers; it "
                                             "is had by a run alone (optim: ",
                                             settings_.optimizer->name, ")"));
    }
    state::check_format({.optimizer = settings_.optimizer, .state_format = settings_.format});
  }

  void lay_out() {
    std::vector<std::pair<std::size_t, std::size_t>> block_of;  // of each tensor: part, block
    for (const OptimizerTensor& tensor : tensors_) {
      if (tensor.elements == 0) throw Error(ErrorCode::bad_input, text("tensor ", tensor.name, " has no elements"));
      const std::size_t part = part_of(tensor.type);
      auto& blocks = parts_[part].blocks;
      block_of.emplace_back(part, blocks.size());
      const state::TensorSpec spec{.name = text(block_of.size(), " ", tensor.name),
                                   .shape = {static_cast<std::int64_t>(tensor.elements)},
                                   .decay = true};
      blocks.push_back({.name = spec.name, .role = state::BlockRole::layer, .tensors = {spec}});
    }
    for (Part& part : parts_) part.layout.emplace(part.blocks, kChunkElements, part.rule.alignment());
    for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
      const auto [part, block] = block_of[tensor];
      const auto& laid = parts_[part].layout->blocks()[block];
      first_chunk_.push_back(chunks_.size());
      for (std::size_t i = 0; i < laid.chunks; ++i) chunks_.push_back({tensor, part, laid.first_chunk + i, 0, 0});
    }
    first_chunk_.push_back(chunks_.size());
  }

  std::size_t part_of(state::ComputeType type) {
    const auto at = std::ranges::find(parts_, type, [](const Part& part) { return part.rule.type; });
    if (at == parts_.end()) {
      parts_.push_back({{.type = type, .optimizer = settings_.optimizer, .state_format = settings_.format}, {}, {}});
      return parts_.size() - 1;
    }
    return static_cast<std::size_t>(at - parts_.begin());
  }

  std::unique_ptr<execute::GroupBank> open_paths(const std::vector<Bytes>& sizes) {
    const Bytes all = execute::path_bank_bytes(sizes, settings_.staging);
    const auto& places = settings_.storage;
    std::vector<std::unique_ptr<storage::Path>> paths;
    for (const StoragePlace& place : places) {
      storage::PathOptions options;
      options.name = std::to_string(paths.size());
      (place.device ? options.device : options.directory) = place.path;
      options.capacity = round_up(ceil_div(all, places.size()), storage::kExtentAlignment);
      options.run = settings_.run;
      options.overwrite = settings_.overwrite;
      options.share.emplace();
      options.number = static_cast<std::uint32_t>(paths.size());
      options.paths = static_cast<std::uint32_t>(places.size());
      paths.push_back(std::make_unique<storage::Path>(options));
      paths.back()->remove_on_close();
      if (!paths.back()->notice().empty()) notices_.push_back(paths.back()->notice());
    }
    return execute::make_path_bank(sizes, settings_.staging, std::move(paths));
  }

  [[nodiscard]] const state::Chunk& layout_chunk(const Chunk& chunk) const {
    return parts_[chunk.part].layout->chunks()[chunk.number];
  }
  [[nodiscard]] const state::Span& span_of(const Chunk& chunk) const {
    return parts_[chunk.part].layout->spans(chunk.number).front();
  }
  [[nodiscard]] std::span<const Chunk> chunks_of(std::size_t tensor) const {
    return std::span(chunks_).subspan(first_chunk_[tensor], first_chunk_[tensor + 1] - first_chunk_[tensor]);
  }
  [[nodiscard]] const state::UpdateRule& rule_of(std::size_t tensor) const {
    return parts_[chunks_of(tensor).front().part].rule;
  }

  void update(const Chunk& chunk, const Update& update, std::byte* memory) {
    const auto& rule = parts_[chunk.part].rule;
    const auto& span = span_of(chunk);
    const auto bytes = state::field_bytes(rule.type);
    auto step = optim::kernel_step(*settings_.optimizer, update.step);
    step.seed = settings_.seed;
    thread_pool_.run(ceil_div(span.elements, execute::kUpdateTile), [&](std::size_t tile) {
      const std::uint64_t first = tile * execute::kUpdateTile;
      const std::uint64_t n = std::min(execute::kUpdateTile, span.elements - first);
      auto at =
          locate(rule, layout_chunk(chunk), span, {.weight = nullptr, .state = memory, .grad = nullptr}, first, n);
      at.span.weight = update.weight + (span.tensor_first + first) * bytes.weight;
      at.span.grad = update.grad + (span.tensor_first + first) * bytes.grad;
      at.span.index = (std::uint64_t{chunk.tensor} << 40) | (span.tensor_first + first);
      kernels::update(at.form, at.span, step);
    });
  }

  /// Calls work(located state) for every chunk of a tensor, in order.
  template <class Work>
  void pass(std::size_t tensor, bool keep, const Work& work) {
    for (const Chunk& chunk : chunks_of(tensor)) {
      const std::array group{chunk.group};
      banks_[chunk.bank]->pass(group, keep, [&](std::size_t, std::byte* memory) {
        const auto& span = span_of(chunk);
        work(locate(parts_[chunk.part].rule, layout_chunk(chunk), span,
                    {.weight = nullptr, .state = memory, .grad = nullptr}, span.chunk_first, span.elements));
      });
    }
  }

  const std::vector<OptimizerTensor> tensors_;
  const OptimizerSettings settings_;
  execute::ThreadPool thread_pool_;
  std::vector<Part> parts_;
  std::vector<Chunk> chunks_;             ///< of all tensors, in order
  std::vector<std::size_t> first_chunk_;  ///< by tensor, and the end
  Bytes state_bytes_ = 0;
  std::array<std::unique_ptr<execute::GroupBank>, 2> banks_;  ///< in memory, on paths
  std::vector<std::string> notices_;
};

Optimizer::Optimizer(std::vector<OptimizerTensor> tensors, OptimizerSettings settings)
    : impl_(std::make_unique<Impl>(std::move(tensors), std::move(settings))) {}
Optimizer::~Optimizer() = default;

void Optimizer::step(std::span<const Update> updates) {
  impl_->step(updates);
}

void Optimizer::set_master(std::size_t tensor, const std::byte* weight) {
  impl_->set_master(tensor, weight);
}

std::vector<StateArray> Optimizer::arrays(std::size_t tensor) const {
  return impl_->arrays(tensor);
}

void Optimizer::fetch(std::size_t tensor, std::span<const std::span<std::byte>> arrays) {
  impl_->transfer(tensor, false, [&](std::size_t array, Bytes at, const std::byte* memory, Bytes bytes) {
    std::memcpy(arrays[array].data() + at, memory, bytes);
  });
}

void Optimizer::store(std::size_t tensor, std::span<const std::span<const std::byte>> arrays) {
  impl_->transfer(tensor, true, [&](std::size_t array, Bytes at, std::byte* memory, Bytes bytes) {
    std::memcpy(memory, arrays[array].data() + at, bytes);
  });
}

const optim::Descriptor& Optimizer::optimizer() const noexcept {
  return impl_->optimizer();
}

Bytes Optimizer::state_bytes() const noexcept {
  return impl_->state_bytes();
}

std::vector<std::string> Optimizer::notices() const {
  return impl_->notices();
}

}  // namespace spillway
