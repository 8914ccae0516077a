#include "spillway/state/source.h"

#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/state/dtype.h"
#include "spillway/state/finite.h"

namespace spillway::state {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += text(i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

/// "; it has X" when a stored name differs by a prefix only.
std::string suggestion(const SafetensorsReader& reader, const std::string& name) {
  for (const auto& [stored, tensor] : reader.tensors()) {
    if (stored.ends_with("." + name) || name.ends_with("." + stored)) return text("; it has ", stored);
  }
  return {};
}

[[noreturn]] void refuse(const std::string& path, const std::string& message) {
  throw Error(ErrorCode::bad_input, message, 0, path);
}

}  // namespace

const std::string& stored_name(const StoredNames& names, const std::string& name) {
  const auto found = names.find(name);
  return found == names.end() ? name : found->second;
}

Source::Source(const Layout& layout, const SafetensorsReader& reader, const std::string& where,
               const StoredNames& names, const Shape& shape)
    : reader_(reader) {
  for (const auto& tensor : layout.tensors()) {
    tensors_.push_back(nullptr);
    const auto needed = shape(tensor);
    if (!needed) continue;
    const auto& name = stored_name(names, tensor.spec.name);
    if (name.empty()) continue;
    const auto* stored = tensors_.back() = reader.find(name);
    if (stored == nullptr) refuse(where, text(where, " has no tensor ", name, suggestion(reader, name)));
    if (stored->shape == *needed) continue;
    refuse(file(*stored), text("tensor ", name, " has the shape ", shape_text(stored->shape), " in ", file(*stored),
                               ", but the model needs ", shape_text(*needed)));
  }
}

void Source::check_types(std::span<const std::string_view> allowed) const {
  for (const auto* tensor : tensors_) {
    if (tensor == nullptr || std::ranges::find(allowed, tensor->dtype) != allowed.end()) continue;
    refuse_type(*tensor, one_of(allowed));
  }
}

void Source::check_weights(const Layout& layout, ComputeType type) const {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const auto* needed = traits(type_of(layout.tensors()[t].spec.form, type)).dtype;
    if (tensors_[t] != nullptr && tensors_[t]->dtype != needed) refuse_type(*tensors_[t], needed);
  }
}

void Source::require_finite(std::size_t tensor, std::uint64_t first, std::span<const float> values,
                            ComputeType type) const {
  const auto found = find_not_finite(values, type);
  if (!found) return;
  const auto& stored = *tensors_[tensor];
  refuse_not_finite({stored.name, stored.shape, first + *found, values[*found]}, file(stored));
}

void Source::require_finite(std::size_t tensor, std::uint64_t first, std::uint64_t count, const std::byte* weights,
                            ComputeType type) const {
  const auto found = find_not_finite(weights, count, type);
  if (!found) return;
  float value = 0;
  to_fp32(traits(type).dtype, weights + *found * traits(type).bytes, 1, &value);
  const auto& stored = *tensors_[tensor];
  refuse_not_finite({stored.name, stored.shape, first + *found, value}, file(stored));
}

void Source::refuse_type(const StoredTensor& tensor, const std::string& needed) const {
  refuse(file(tensor),
         text("tensor ", tensor.name, " is ", tensor.dtype, " in ", file(tensor), ", but ", needed, " is needed"));
}

void Source::check_no_more() const {
  for (const auto& [name, tensor] : reader_.tensors()) {
    if (std::ranges::find(tensors_, &tensor) != tensors_.end()) continue;
    refuse(file(tensor), text(file(tensor), " has the tensor ", name, ", which the model being trained does not"));
  }
}

}  // namespace spillway::state
