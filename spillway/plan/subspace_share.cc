#include "spillway/plan/subspace_share.h"

#include "spillway/state/rule.h"

namespace spillway::plan {
namespace {

/// Learning from an element of a gradient, for each value in a row of a projector, beside the update of an element: on
/// one thread 0.2 to 0.9 ns were measured (docs/decisions/0004-subspaces.md) beside 1 ns.
constexpr double kFitWork = 0.6;

/// Elements of layers' matrices: all, those that learn, and those of their gradients.
struct Products {
  double all = 0, learning = 0, gradients = 0;
};

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
  if (checks.rotate == 0) return 0;
  const auto whole = static_cast<double>(chunk.elements * chunk.subspace.nonzeros) * kFitWork;
  return static_cast<std::uint64_t>(whole / static_cast<double>(checks.rotate));
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

double products_in_full(const state::Layout& layout) {
  const auto found = products_of(layout);
  const auto here = 2 * found.all + found.gradients;
  return here > 0 ? (2 * found.all + found.learning) / here : 1;
}

}  // namespace spillway::plan
