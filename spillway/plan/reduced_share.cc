#include "spillway/plan/reduced_share.h"

#include <algorithm>

#include "spillway/state/rule.h"

namespace spillway::plan {
namespace {

/// Elements of layers' matrices: all, those that are trainable, those of their gradients, and those that are reduced.
struct Products {
  double all = 0, trainable = 0, gradients = 0, inside = 0;
};

/// The share of an average step: a matrix has a refit in one of so many. 0: only when too much is missed. A reduction
/// that looks at whole gradients is taken to refit after each look.
double turn(const optim::RefitRule& checks, const optim::Reduction* by) noexcept {
  if (by != nullptr && by->looks) return 1 / static_cast<double>(checks.check_every);
  return checks.rotate_every > 0 ? 1 / static_cast<double>(checks.rotate_every) : 0;
}

Products products_of(const state::Layout& layout) {
  Products out;
  for (const auto& tensor : layout.tensors()) {
    if (traits(layout.blocks()[tensor.block].role).is_table || tensor.spec.shape.size() < 2) continue;
    out.all += static_cast<double>(tensor.elements);
    if (!is_trainable(tensor.spec.training)) continue;
    out.trainable += static_cast<double>(tensor.elements);
    out.gradients += static_cast<double>(tensor.gradient_elements());
    out.inside += tensor.reduced.any() ? static_cast<double>(tensor.elements) : 0;
  }
  return out;
}

}  // namespace

ReducedShare reduced_share(const Description& description, const state::Layout& layout) {
  ReducedShare out;
  const auto rule = description.rule();
  for (const auto& chunk : layout.chunks()) {
    if (!chunk.reduced.any()) continue;
    ++out.matrices;
    out.elements += chunk.used;
    out.gradients += grad_bytes(rule, chunk);
    out.gradients_in_full += chunk.elements * state::field_bytes(rule.type).grad;
  }
  return out;
}

std::uint64_t refit_elements(const optim::RefitRule& checks, const state::Chunk& chunk) noexcept {
  const auto whole = chunk.reduced.by->refit_cost(chunk.reduced, chunk.elements);
  return static_cast<std::uint64_t>(whole * turn(checks, chunk.reduced.by));
}

Description in_full(Description description) {
  for (auto& block : description.blocks) {
    for (auto& tensor : block.tensors) {
      if (tensor.training != state::Training::reduced) continue;
      tensor.training = state::Training::full;
      tensor.form = state::Form::as_run;
    }
  }
  return description;
}

double products_with_refits(const Description& description, const state::Layout& layout) {
  const auto products = products_of(layout);
  const auto here = 2 * products.all + products.gradients;
  const auto learned =
      turn(description.refits, layout.reduction()) * products.inside / static_cast<double>(description.micro_batches);
  return here > 0 ? 1 + learned / here : 1;
}

double products_in_full(const state::Layout& layout) {
  const auto products = products_of(layout);
  const auto here = 2 * products.all + products.gradients;
  return here > 0 ? (2 * products.all + products.trainable) / here : 1;
}

}  // namespace spillway::plan
