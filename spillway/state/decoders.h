// One decoder for each kind of codes (coding.h): a weight's shape by its parts, and any of its values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/state/coding.h"

namespace spillway::state {

/// What a checkpoint holds of one weight.
struct CodedParts {
  std::string name;                                      ///< of the weight
  const StoredTensor* codes = nullptr;                   ///< never null
  std::map<std::string_view, const StoredTensor*> more;  ///< by the end of their names
  std::string file;                                      ///< that has the codes, for messages

  /// Null where there is no such part.
  [[nodiscard]] const StoredTensor* find(std::string_view part) const;
  /// Throws Error(bad_input) that names the part where it is missing.
  [[nodiscard]] const StoredTensor& at(std::string_view part) const;
  [[noreturn]] void refuse(const std::string& what) const;
  /// Throws Error(bad_input) for codes of another type.
  void require_type(const StoredTensor& tensor, std::string_view dtype) const;
  /// The same for a type that scales never have.
  void require_scales(const StoredTensor& tensor) const;
};

class CodedTensors::Decoder {
 public:
  explicit Decoder(Read read) : read_(std::move(read)) {}
  virtual ~Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  [[nodiscard]] const std::vector<std::int64_t>& shape() const noexcept { return shape_; }
  /// Values [first, first + count), which are there.
  virtual void decode(std::uint64_t first, std::uint64_t count, float* out) const = 0;

 protected:
  [[nodiscard]] std::vector<std::uint8_t> read_bytes(const StoredTensor& tensor, std::uint64_t first,
                                                     std::uint64_t count) const;
  /// Scales in any type: floats, or exponents of one byte.
  [[nodiscard]] std::vector<float> read_scales(const StoredTensor& tensor, std::uint64_t first,
                                               std::uint64_t count) const;

  std::vector<std::int64_t> shape_;

 private:
  Read read_;
};

using MakeDecoder = std::unique_ptr<CodedTensors::Decoder> (*)(const Coding&, const CodedParts&, CodedTensors::Read);

// Ends of the names of parts, by which decoders ask for them.
inline constexpr std::string_view kNf4State = ".quant_state.bitsandbytes__nf4", kAbsmax = ".absmax",
                                  kQuantMap = ".quant_map", kNestedAbsmax = ".nested_absmax",
                                  kNestedMap = ".nested_quant_map", kInverseScales = "_scale_inv",
                                  kBlockScales = "_scales";

/// NF4 of bitsandbytes: QuantState.from_dict and dequantize_4bit.
std::unique_ptr<CodedTensors::Decoder> make_nf4(const Coding& coding, const CodedParts& parts, CodedTensors::Read read);
/// FP8 e4m3 with a scale for each block of a matrix, as DeepSeek-V3 has it.
std::unique_ptr<CodedTensors::Decoder> make_fp8(const Coding& coding, const CodedParts& parts, CodedTensors::Read read);
/// MXFP4 experts of gpt-oss: rows of FP4 e2m1 in blocks of 32 with an exponent each, transposed.
std::unique_ptr<CodedTensors::Decoder> make_mxfp4(const Coding& coding, const CodedParts& parts,
                                                  CodedTensors::Read read);

}  // namespace spillway::state
