// One file set of a checkpoint that is about to be read: each tensor of the layout found, and found to be what is
// needed.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/state/checkpoint.h"
#include "spillway/state/layout.h"
#include "spillway/state/safetensors.h"

namespace spillway::state {

[[nodiscard]] const std::string& stored_name(const StoredNames& names, const std::string& name);

class Source {
 public:
  /// What a file holds of a tensor of the model: its shape there, or nothing.
  using Shape = std::function<std::optional<std::vector<std::int64_t>>(const Tensor&)>;

  /// `where`: for messages. Throws Error(bad_input) naming the first tensor that is missing or of another shape.
  Source(const Layout& layout, const SafetensorsReader& reader, const std::string& where, const StoredNames& names = {},
         const Shape& shape = whole);

  /// Throws Error(bad_input) for a type that is not `allowed`. At least one is.
  void check_types(std::span<const std::string_view> allowed) const;
  /// Checks the weights for a type that is not what compute weights have in files.
  void check_weights(const Layout& layout, ComputeType type) const;
  /// Refuses a tensor that the layout does not have.
  void check_no_more() const;

  /// nullptr: not in this file.
  [[nodiscard]] const StoredTensor* find(std::size_t tensor) const { return tensors_[tensor]; }
  /// `count` entries from `first` on.
  void read(std::size_t tensor, std::uint64_t first, std::uint64_t count, std::byte* out) const {
    reader_.read(*tensors_[tensor], first, count, out);
  }
  void read_fp32(std::size_t tensor, std::uint64_t first, std::uint64_t count, float* out) const {
    reader_.read_fp32(*tensors_[tensor], first, count, out);
  }
  /// Throws Error(bad_input) where one of these entries, from `first` on, is not finite as a weight of this type.
  void require_finite(std::size_t tensor, std::uint64_t first, std::span<const float> values, ComputeType type) const;
  /// The same of `count` weights.
  void require_finite(std::size_t tensor, std::uint64_t first, std::uint64_t count, const std::byte* weights,
                      ComputeType type) const;

  [[nodiscard]] static std::optional<std::vector<std::int64_t>> whole(const Tensor& tensor) {
    return tensor.spec.shape;
  }

 private:
  [[noreturn]] void refuse_type(const StoredTensor& tensor, const std::string& needed) const;
  [[nodiscard]] std::string file(const StoredTensor& tensor) const { return reader_.files()[tensor.file].string(); }

  const SafetensorsReader& reader_;
  std::vector<const StoredTensor*> tensors_;  ///< by number in the layout
};

}  // namespace spillway::state
