// Names of objects and pieces on the paths, in a person's words.
#pragma once

#include <string>

#include "spillway/execute/journal_objects.h"
#include "spillway/execute/store.h"
#include "spillway/plan/description.h"
#include "spillway/state/layout.h"
#include "spillway/storage/place.h"

namespace spillway::execute {

class ObjectNames {
 public:
  /// Both must outlive it.
  ObjectNames(const plan::Description& description, const state::Layout& layout);

  /// "weights, remainder and moments of model.norm.weight (chunk 12)"
  [[nodiscard]] std::string describe(journal::ObjectKind kind, std::uint32_t object) const;
  /// Bytes [first, first + bytes) of a part of an object: "exp_avg of model.layers.3.mlp.up_proj.weight (chunk 17)".
  [[nodiscard]] std::string describe(journal::ObjectKind kind, std::uint32_t object, std::uint32_t part, Bytes first,
                                     Bytes bytes) const;

 private:
  [[nodiscard]] std::string tensors(std::size_t chunk, std::uint64_t first, std::uint64_t last) const;
  [[nodiscard]] std::string fields(std::size_t chunk, std::uint32_t part, Bytes first, Bytes last) const;

  const plan::Description& description_;
  const state::Layout& layout_;
  std::vector<std::size_t> chunks_;  ///< of the dense gradients
};

}  // namespace spillway::execute
