#include "spillway/state/decoders.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "spillway/base/error.h"
#include "spillway/kernels/narrow_floats.h"
#include "spillway/kernels/packed.h"
#include "spillway/state/dtype.h"

namespace spillway::state {
namespace {

using Json = nlohmann::json;
using Shape = std::vector<std::int64_t>;

constexpr std::uint64_t kDecodedPiece = 1 << 20;  // values that are decoded at a time

/// Product of sizes [first, last) of a shape.
std::uint64_t count_values(const Shape& shape, std::size_t first, std::size_t last) {
  std::uint64_t out = 1;
  for (std::size_t i = first; i < last; ++i) out *= static_cast<std::uint64_t>(shape[i]);
  return out;
}

template <float (*Widen)(std::uint8_t) noexcept>
std::array<float, 256> make_table() {
  std::array<float, 256> out{};
  for (unsigned code = 0; code < out.size(); ++code) out[code] = Widen(static_cast<std::uint8_t>(code));
  return out;
}

// ---- NF4

class Nf4Decoder final : public CodedTensors::Decoder {
 public:
  Nf4Decoder(const CodedParts& parts, CodedTensors::Read read)
      : Decoder(std::move(read)), codes_(*parts.codes), absmax_(parts.at(kAbsmax)) {
    const auto& stored = parts.at(kNf4State);
    parts.require_type(stored, "U8");
    const auto text_bytes = read_bytes(stored, 0, stored.elements);
    const auto state = Json::parse(text_bytes.begin(), text_bytes.end(), nullptr, false);
    try {
      shape_ = state.at("shape").get<Shape>();
      block_ = state.at("blocksize").get<std::uint64_t>();
      if (parts.find(kNestedAbsmax) != nullptr) {
        nested_block_ = state.at("nested_blocksize").get<std::uint64_t>();
        offset_ = state.at("nested_offset").get<float>();
      }
    } catch (const Json::exception& error) {
      parts.refuse(text(stored.name, " cannot be read: ", error.what()));
    }
    for (const auto size : shape_) {
      if (size <= 0) parts.refuse(text(stored.name, " has a shape with ", size));
    }
    check_parts(parts);
  }

  void decode(std::uint64_t first, std::uint64_t count, float* out) const override {
    constexpr auto kUnit = kernels::kPackedBlock;
    for (std::uint64_t at = first / kUnit * kUnit; at < first + count; at += kDecodedPiece) {
      const auto n = std::min(kDecodedPiece, values_ - at);
      const auto codes = read_bytes(codes_, at / 2, ceil_div(n, 2));
      const auto scales = read_block_scales(at / block_, ceil_div(at + n, block_) - at / block_);
      std::vector<float> of_units(ceil_div(n, kUnit));
      for (std::uint64_t unit = 0; unit < of_units.size(); ++unit) {
        of_units[unit] = scales[(at + unit * kUnit) / block_ - at / block_];
      }
      std::vector<float> values(n);
      kernels::unpack_nf4(codes.data(), of_units.data(), values.data(), n);
      const auto begin = std::max(first, at), end = std::min(first + count, at + n);
      std::copy_n(values.data() + (begin - at), end - begin, out + (begin - first));
    }
  }

 private:
  void check_parts(const CodedParts& parts) {
    parts.require_type(codes_, "U8");
    values_ = count_values(shape_, 0, shape_.size());
    if (block_ == 0 || block_ % kernels::kPackedBlock != 0) {
      parts.refuse(text("blocks of ", block_, " values are not read, only multiples of ", kernels::kPackedBlock));
    }
    if (codes_.elements != ceil_div(values_, 2)) {
      parts.refuse(text(codes_.elements, " bytes of codes, its ", values_, " values need ", ceil_div(values_, 2)));
    }
    const auto blocks = ceil_div(values_, block_);
    if (absmax_.elements != blocks) {
      parts.refuse(text(absmax_.name, " has ", absmax_.elements, " scales, its ", values_, " values need ", blocks));
    }
    if (nested_block_ == 0) return parts.require_scales(absmax_);
    parts.require_type(absmax_, "U8");
    const auto& scales = parts.at(kNestedAbsmax);
    const auto& map = parts.at(kNestedMap);
    for (const auto* part : {&scales, &map}) parts.require_type(*part, "F32");
    if (scales.elements != ceil_div(blocks, nested_block_) || map.elements != nested_map_.size()) {
      parts.refuse(text(scales.name, " and ", map.name, " do not fit its ", blocks, " scales"));
    }
    nested_scales_ = read_scales(scales, 0, scales.elements);
    std::ranges::copy(read_scales(map, 0, map.elements), nested_map_.begin());
  }

  [[nodiscard]] std::vector<float> read_block_scales(std::uint64_t first, std::uint64_t count) const {
    if (nested_block_ == 0) return read_scales(absmax_, first, count);
    const auto codes = read_bytes(absmax_, first, count);
    std::vector<float> out(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      out[i] = nested_map_[codes[i]] * nested_scales_[(first + i) / nested_block_] + offset_;
    }
    return out;
  }

  const StoredTensor codes_, absmax_;
  std::uint64_t values_ = 0, block_ = 0;
  std::uint64_t nested_block_ = 0;  ///< scales of a scale; 0: scales are no codes
  float offset_ = 0;
  std::vector<float> nested_scales_;
  std::array<float, 256> nested_map_{};
};

// ---- FP8

class Fp8Decoder final : public CodedTensors::Decoder {
 public:
  Fp8Decoder(const Coding& coding, const CodedParts& parts, CodedTensors::Read read)
      : Decoder(std::move(read)), codes_(*parts.codes), scales_(parts.at(kInverseScales)) {
    parts.require_type(codes_, "F8_E4M3");
    parts.require_scales(scales_);
    shape_ = codes_.shape;
    if (shape_.empty()) parts.refuse("a scale and no weight");
    columns_ = static_cast<std::uint64_t>(shape_.back());
    rows_ = shape_.size() > 1 ? static_cast<std::uint64_t>(shape_[shape_.size() - 2]) : 1;
    set_grid(coding, parts);
  }

  void decode(std::uint64_t first, std::uint64_t count, float* out) const override {
    static const auto kValues = make_table<kernels::widen_e4m3>();
    while (count > 0) {
      const auto n = std::min(count, kDecodedPiece);
      const auto codes = read_bytes(codes_, first, n);
      const auto first_row = scale_row(first / columns_), last_row = scale_row((first + n - 1) / columns_);
      const auto scales = read_scales(scales_, first_row * scale_columns_, (last_row - first_row + 1) * scale_columns_);
      for (std::uint64_t i = 0; i < n;) {
        const auto row = (first + i) / columns_, column = (first + i) % columns_;
        const auto block = column / block_columns_;
        const auto end = std::min({n, i + columns_ - column, i + (block + 1) * block_columns_ - column});
        const float scale = scales[(scale_row(row) - first_row) * scale_columns_ + block];
        for (; i < end; ++i) out[i] = kValues[codes[i]] * scale;
      }
      first += n;
      count -= n;
      out += n;
    }
  }

 private:
  /// The configuration's blocks; where it names none, those that the scales divide the matrix into.
  void set_grid(const Coding& coding, const CodedParts& parts) {
    if (scales_.elements == 1) {
      block_rows_ = std::max<std::uint64_t>(1, count_values(shape_, 0, shape_.size()));
      block_columns_ = std::max<std::uint64_t>(1, columns_);
      scale_rows_ = 0;  // one for all matrices
      scale_columns_ = 1;
      return;
    }
    const auto& grid = scales_.shape;
    const bool fits = grid.size() == shape_.size() && grid.size() >= 2 &&
                      std::equal(grid.begin(), grid.end() - 2, shape_.begin()) && scales_.elements > 0;
    if (!fits) refuse_grid(parts);
    scale_rows_ = static_cast<std::uint64_t>(grid[grid.size() - 2]);
    scale_columns_ = static_cast<std::uint64_t>(grid.back());
    block_rows_ = find_block(rows_, scale_rows_, coding.block_rows);
    block_columns_ = find_block(columns_, scale_columns_, coding.block_columns);
    if (block_rows_ == 0 || block_columns_ == 0) refuse_grid(parts);
  }

  /// 0: there is none.
  static std::uint64_t find_block(std::uint64_t size, std::uint64_t scales, std::uint64_t configured) {
    if (configured != 0) return ceil_div(size, configured) == scales ? configured : 0;
    return size % scales == 0 ? size / scales : 0;
  }

  [[noreturn]] void refuse_grid(const CodedParts& parts) const {
    parts.refuse(text(scales_.name, " has ", scales_.elements, " scales, which do not divide its ", rows_, " x ",
                      columns_, " values into blocks"));
  }

  /// The row of scales of a row of all matrices.
  [[nodiscard]] std::uint64_t scale_row(std::uint64_t row) const {
    return scale_rows_ == 0 ? 0 : row / rows_ * scale_rows_ + row % rows_ / block_rows_;
  }

  const StoredTensor codes_, scales_;
  std::uint64_t rows_ = 0, columns_ = 0;              ///< of a matrix
  std::uint64_t block_rows_ = 0, block_columns_ = 0;  ///< values of a scale
  std::uint64_t scale_rows_ = 0, scale_columns_ = 0;  ///< scales of a matrix
};

// ---- MXFP4

class Mxfp4Decoder final : public CodedTensors::Decoder {
 public:
  Mxfp4Decoder(const CodedParts& parts, CodedTensors::Read read)
      : Decoder(std::move(read)), codes_(*parts.codes), scales_(parts.at(kBlockScales)) {
    parts.require_type(codes_, "U8");
    parts.require_type(scales_, "U8");
    const auto& shape = codes_.shape;
    const bool fits = shape.size() == 4 && shape[3] == kBlockBytes && codes_.elements > 0 &&
                      scales_.shape == Shape(shape.begin(), shape.end() - 1);
    if (!fits) parts.refuse(text("codes and ", scales_.name, " are no blocks of ", kBlockBytes, " bytes with a scale"));
    rows_ = static_cast<std::uint64_t>(shape[1]);
    groups_ = static_cast<std::uint64_t>(shape[2]);
    shape_ = {shape[0], shape[2] * kBlockBytes * 2, shape[1]};
  }

  void decode(std::uint64_t first, std::uint64_t count, float* out) const override {
    static const auto kValues = make_products();
    const auto columns = groups_ * kBlockBytes * 2, of_expert = rows_ * columns;
    while (count > 0) {
      const auto expert = first / of_expert, begin = first % of_expert;
      const auto n = std::min(count, of_expert - begin);
      const auto held = hold(expert);
      for (std::uint64_t i = 0; i < n;) {
        const auto column = (begin + i) / rows_, first_row = (begin + i) % rows_;
        const auto last_row = std::min(rows_, first_row + n - i);
        const auto* const pairs = held->codes.data() + column / 2;
        const auto* const scales = held->scales.data() + column / (2 * kBlockBytes);
        const unsigned shift = column % 2 == 0 ? 0 : 4;
        for (auto row = first_row; row < last_row; ++row, ++i) {
          const unsigned code = pairs[row * groups_ * kBlockBytes] >> shift & 15U;
          out[i] = kValues[scales[row * groups_] * 16U + code];
        }
      }
      first += n;
      count -= n;
      out += n;
    }
  }

 private:
  static constexpr std::int64_t kBlockBytes = 16;  // two values each

  struct Expert {
    std::vector<std::uint8_t> codes, scales;
  };

  /// What each code stands for, by scale.
  static std::vector<float> make_products() {
    std::vector<float> out;
    for (int scale = 0; scale < 256; ++scale) {
      for (unsigned code = 0; code < 16; ++code) {
        out.push_back(std::ldexp(kernels::widen_e2m1(static_cast<std::uint8_t>(code)), scale - 127));
      }
    }
    return out;
  }

  /// The codes of one expert, since each of its values in a row of the weight is in another row of codes. Those that
  /// were read last stay, for the next part of a weight, until its end.
  [[nodiscard]] std::shared_ptr<const Expert> hold(std::uint64_t expert) const {
    const auto of_codes = rows_ * groups_ * kBlockBytes, of_scales = rows_ * groups_;
    const std::lock_guard lock(mutex_);
    if (held_ == nullptr || held_number_ != expert) {
      held_ = std::make_shared<Expert>(
          Expert{read_bytes(codes_, expert * of_codes, of_codes), read_bytes(scales_, expert * of_scales, of_scales)});
      held_number_ = expert;
    }
    auto out = held_;
    if (expert + 1 == static_cast<std::uint64_t>(shape_[0])) held_.reset();
    return out;
  }

  const StoredTensor codes_, scales_;
  std::uint64_t rows_ = 0, groups_ = 0;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Expert> held_;
  mutable std::uint64_t held_number_ = 0;
};

}  // namespace

const StoredTensor* CodedParts::find(std::string_view part) const {
  const auto found = more.find(part);
  return found == more.end() ? nullptr : found->second;
}

const StoredTensor& CodedParts::at(std::string_view part) const {
  const auto* found = find(part);
  if (found == nullptr) refuse(text("there is no ", name, part));
  return *found;
}

void CodedParts::refuse(const std::string& what) const {
  throw Error(ErrorCode::bad_input, text(file, ": the codes of ", name, " cannot be decoded: ", what), 0, file);
}

void CodedParts::require_type(const StoredTensor& tensor, std::string_view dtype) const {
  if (tensor.dtype != dtype) refuse(text(tensor.name, " is ", tensor.dtype, ", but ", dtype, " is needed"));
}

void CodedParts::require_scales(const StoredTensor& tensor) const {
  const bool known = tensor.dtype == "U8" || tensor.dtype == "F8_E8M0" || converts_to_fp32(tensor.dtype);
  if (!known) refuse(text(tensor.name, " is ", tensor.dtype, ", which holds no scales"));
}

std::vector<std::uint8_t> CodedTensors::Decoder::read_bytes(const StoredTensor& tensor, std::uint64_t first,
                                                            std::uint64_t count) const {
  std::vector<std::uint8_t> out(count * tensor.element_bytes);
  read_(tensor, first, count, reinterpret_cast<std::byte*>(out.data()));
  return out;
}

std::vector<float> CodedTensors::Decoder::read_scales(const StoredTensor& tensor, std::uint64_t first,
                                                      std::uint64_t count) const {
  static const auto kExponents = make_table<kernels::widen_e8m0>();
  const auto bytes = read_bytes(tensor, first, count);
  std::vector<float> out(count);
  if (tensor.element_bytes == 1) {
    std::ranges::transform(bytes, out.begin(), [](std::uint8_t code) { return kExponents[code]; });
  } else {
    to_fp32(tensor.dtype, reinterpret_cast<const std::byte*>(bytes.data()), count, out.data());
  }
  return out;
}

std::unique_ptr<CodedTensors::Decoder> make_nf4(const Coding& /*coding*/, const CodedParts& parts,
                                                CodedTensors::Read read) {
  return std::make_unique<Nf4Decoder>(parts, std::move(read));
}

std::unique_ptr<CodedTensors::Decoder> make_fp8(const Coding& coding, const CodedParts& parts,
                                                CodedTensors::Read read) {
  return std::make_unique<Fp8Decoder>(coding, parts, std::move(read));
}

std::unique_ptr<CodedTensors::Decoder> make_mxfp4(const Coding& /*coding*/, const CodedParts& parts,
                                                  CodedTensors::Read read) {
  return std::make_unique<Mxfp4Decoder>(parts, std::move(read));
}

}  // namespace spillway::state
