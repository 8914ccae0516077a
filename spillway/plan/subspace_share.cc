#include "spillway/plan/subspace_share.h"

#include <algorithm>

#include "spillway/state/rule.h"

namespace spillway::plan {
namespace {

constexpr double kUpdateTraffic = 26;  ///< bytes that an update moves for an element, as a profile's rates are
constexpr double kFitMemory = 12;      ///< bytes: a gradient is read twice, and half of it written and read

/// Elements of layers' matrices: all, those that learn, and those of their gradients.
struct Products {
  double all = 0, learning = 0, gradients = 0;
};

/// Of an average step: a matrix learns again in one of so many. 0: only when its projectors miss too much.
double turn(const SubspaceChecks& checks) noexcept {
  return checks.rotate > 0 ? 1 / static_cast<double>(checks.rotate) : 0;
}

Products products_of(const state::Layout& layout) {
  Products out;
  for (const auto& tensor : layout.tensors()) {
    if (layout.blocks()[tensor.block].role != state::BlockRole::layer || tensor.spec.shape.size() < 2) continue;
    out.all += static_cast<double>(tensor.elements);
    if (!learns(tensor.spec.learning)) continue;
    out.learning += static_cast<double>(tensor.elements);
    out.gradients += static_cast<double>(tensor.core());
  }
  return out;
}

}  // namespace

SubspaceShare subspace_share(const Description& description, const state::Layout& layout) {
  SubspaceShare out;
  const auto rule = description.rule();
  for (const auto& chunk : layout.chunks()) {
    if (chunk.subspace.rank == 0) continue;
    ++out.matrices;
    out.elements += chunk.used;
    out.gradients += grad_bytes(rule, chunk);
    out.gradients_in_full += chunk.elements * state::field_bytes(rule.type).grad;
  }
  return out;
}

std::uint64_t fit_elements(const SubspaceChecks& checks, const state::Chunk& chunk) noexcept {
  const auto whole = static_cast<double>(chunk.elements * chunk.subspace.nonzeros) * kFitWork;
  return static_cast<std::uint64_t>(whole * turn(checks));
}

FitShare fit_share(const Description& description, const state::Layout& layout) {
  const auto turns = turn(description.subspaces);
  double elements = 0;
  FitShare out;
  for (const auto& tensor : layout.tensors()) {
    if (layout.blocks()[tensor.block].role != state::BlockRole::layer) continue;
    elements += static_cast<double>(tensor.elements);
    if (tensor.subspace.rank == 0) continue;
    const auto learned = turns * static_cast<double>(tensor.elements);
    out.products += learned / static_cast<double>(description.micro_batches);
    out.bytes += learned * sizeof(float);
    out.memory += learned * kFitMemory;
    out.traffic += learned * static_cast<double>(tensor.subspace.nonzeros) * kFitWork * kUpdateTraffic;
  }
  if (elements == 0) return {};
  out.products /= std::max(1.0, products_of(layout).all);
  out.bytes /= elements, out.memory /= elements, out.traffic /= elements;
  return out;
}

Description in_full(Description description) {
  for (auto& block : description.blocks) {
    for (auto& tensor : block.tensors) {
      if (tensor.learning == state::Learning::subspace) tensor.learning = state::Learning::full;
    }
  }
  return description;
}

double gradient_products(const state::Layout& layout) {
  const auto found = products_of(layout);
  return found.all > 0 ? found.gradients / found.all : 1;
}

double products_with_fits(const Description& description, const state::Layout& layout) {
  const auto found = products_of(layout);
  const auto here = 2 * found.all + found.gradients;
  return here > 0 ? 1 + fit_share(description, layout).products * found.all / here : 1;
}

double products_in_full(const state::Layout& layout) {
  const auto found = products_of(layout);
  const auto here = 2 * found.all + found.gradients;
  return here > 0 ? (2 * found.all + found.learning) / here : 1;
}

}  // namespace spillway::plan
