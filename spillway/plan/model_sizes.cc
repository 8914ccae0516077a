#include "spillway/plan/model_sizes.h"

#include <algorithm>

#include "spillway/base/error.h"

namespace spillway::plan {

using state::BlockRole;

ModelSizes sizes_of(const Description& description, const state::Layout& layout) {
  ModelSizes out;
  double largest = 0, elements = 0, matrix = 0;
  for (const auto& block : layout.blocks()) {
    if (block.role == BlockRole::layer) {
      largest = std::max(largest, static_cast<double>(block.elements));
      elements += static_cast<double>(block.elements);
      continue;
    }
    out.table = static_cast<double>(block.elements);
    out.vocabulary = static_cast<double>(block.rows);
    out.hidden = static_cast<double>(block.columns);
    ++out.tables;
  }
  for (const auto& block : layout.blocks()) {
    out.layers += block.role == BlockRole::layer && static_cast<double>(block.elements) > largest / 100;
  }
  for (const auto& tensor : layout.tensors()) {
    const bool layer = layout.blocks()[tensor.block].role == BlockRole::layer;
    if (layer && tensor.spec.shape.size() > 1) matrix += static_cast<double>(tensor.elements);
  }
  if (out.layers == 0 || out.tables == 0) {
    throw Error(ErrorCode::bad_input, "a plan for a device needs a model with layers and an embedding");
  }
  out.layer = elements / out.layers;
  out.matrix = matrix / out.layers;
  const auto rule = description.rule();
  out.weight = static_cast<double>(state::field_bytes(rule.type).weight);
  double state = 0, grad = 0, learning = 0, chunks = 0;
  for (const auto& chunk : layout.chunks()) {
    state += static_cast<double>(state_bytes(rule, chunk));
    grad += static_cast<double>(grad_bytes(rule, chunk));
    learning += state::learns(chunk.learning) ? static_cast<double>(chunk.elements) : 0;
    chunks += static_cast<double>(chunk.elements);
  }
  out.state = state / chunks;
  out.grad = grad / chunks;
  out.learning = learning / chunks;
  out.fits = fit_share(description, layout);
  out.gradient_products = gradient_products(layout) + out.fits.products;
  return out;
}

}  // namespace spillway::plan
