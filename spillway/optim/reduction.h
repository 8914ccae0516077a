// Matrices whose gradient and optimizer state are kept in another, smaller shape: what a way of doing so declares, and
// what it makes of one matrix. The weight keeps its shape; a gradient passes a sink (sink/gradient_sink.h) that takes
// it whole, or the factors it is a product of, and leaves the reduced one. Beside it, and beside the state, lie
// auxiliary fields: a record, and values that a background refit may make anew. Whoever sizes, places, saves or moves
// them asks here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::optim {

struct Reduced;

/// A part of the auxiliary fields, as a file holds it.
struct AuxiliaryPart {
  const char* suffix = "";  ///< behind the matrix's name
  const char* dtype = "";   ///< as safetensors names it
  std::vector<std::int64_t> shape;
  Bytes first = 0, bytes = 0;  ///< from the start of the auxiliary fields
};

/// One way of it, by functions of a matrix's shape. Plain data.
struct Reduction {
  const char* name = "";       ///< of the method in configurations: "lsp"
  const char* word = "";       ///< of such a matrix, in descriptions of a model and on disk: "subspace"
  const char* auxiliary = "";  ///< of the auxiliary fields for people, and of their file, without ".safetensors"
  const char* others = "";     ///< what a state may be of whose auxiliary fields do not fit, for people
  Bytes record = 0;            ///< of the auxiliary fields, the bytes that come first and change with every step
  bool looks = false;          ///< takes a whole gradient every RefitRule::check_every updates, to see what is missed
  Bytes (*auxiliary_bytes)(const Reduced& it) = nullptr;  ///< all of them
  std::vector<AuxiliaryPart> (*parts)(const Reduced& it) = nullptr;
  Bytes (*device_bytes)(const Reduced& it) = nullptr;   ///< of a copy that passes on a device reduce gradients by
  std::string (*refusal)(const Reduced& it) = nullptr;  ///< why a matrix cannot be reduced so; "": it can
  Bytes (*refit_work)(const Reduced& it) = nullptr;     ///< that a refit takes beside the gradient
  /// A refit from a gradient of so many elements, counted in elements that AdamW updates.
  double (*refit_cost)(const Reduced& it, std::uint64_t elements) = nullptr;
};

extern const Reduction lsp;            ///< learned sparse projectors (optim/lsp.h)
extern const Reduction lsp_published;  ///< the same with scattered projectors, which are learned by descent

/// All that there are.
[[nodiscard]] std::span<const Reduction* const> reductions() noexcept;
/// The reduction of that word. Throws Error(bad_input) naming those that there are.
[[nodiscard]] const Reduction& parse_reduction(std::string_view word);

/// A matrix [rows, columns] whose gradient and moments are S [rank, rank].
struct Reduced {
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t rank = 0, nonzeros = 0;  ///< 0: it is not reduced; `nonzeros` is the way's own
  const Reduction* by = &lsp;

  [[nodiscard]] constexpr bool any() const noexcept { return rank > 0; }
  [[nodiscard]] constexpr std::uint64_t elements() const noexcept { return rank * rank; }
  [[nodiscard]] constexpr Bytes auxiliary_bytes() const { return any() ? by->auxiliary_bytes(*this) : 0; }
  /// Describes the auxiliary fields but the record.
  [[nodiscard]] constexpr Bytes refitted_bytes() const { return any() ? auxiliary_bytes() - by->record : 0; }
  /// Describes the copy that passes on a device have.
  [[nodiscard]] constexpr Bytes device_bytes() const { return any() ? by->device_bytes(*this) : 0; }
  friend bool operator==(const Reduced&, const Reduced&) = default;
};

/// When auxiliary values are made anew from a gradient, in the background.
struct RefitRule {
  std::uint64_t check_every = 100;  ///< updates between two checks of what the reduction misses of gradients; > 0
  double threshold = 0.9;           ///< of that error, relative to the gradient: beyond it they are made anew; > 0
  std::uint64_t rotate_every = 0;   ///< updates after which each matrix's are made anew whatever is missed; 0: never
};

}  // namespace spillway::optim
