// Weights that a checkpoint holds as codes of few bits, read as the fp32 tensors that they stand for.
//
// A model that was published quantised has several tensors in place of a weight: its codes, and the parts that decode
// them. The table in coding.cc has a row for each kind that is read. Which kind a checkpoint has is said by
// `quantization_config` in the config.json beside it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "spillway/state/safetensors.h"

namespace spillway::state {

struct CodingKind;  // a row of the table

/// A kind of codes, with what the configuration adds to it.
struct Coding {
  const CodingKind* kind = nullptr;
  std::uint64_t block_rows = 0, block_columns = 0;  ///< values of a scale, where the configuration says so; else 0
};

/// Parses `quantization_config`, as JSON. `file`: for messages. Throws Error(bad_input) that names the method where it
/// is not read.
[[nodiscard]] Coding parse_coding(std::string_view settings, const std::string& file);
/// The coding of the config.json in a directory. None without that file, and for plain weights.
[[nodiscard]] std::optional<Coding> find_coding(const std::filesystem::path& directory);
/// For a person, such as "FP8 e4m3 with block scales".
[[nodiscard]] std::string_view name_of(const Coding& coding);
/// The form that packs what is decoded into the same codes and values; "": none does.
[[nodiscard]] std::string_view form_of(const Coding& coding);
/// The names of a checkpoint's tensors when its weights are decoded.
[[nodiscard]] std::set<std::string> decoded_names(const Coding& coding, const std::set<std::string>& names);

/// The coded weights of one checkpoint.
class CodedTensors {
 public:
  using Tensors = std::map<std::string, StoredTensor>;
  /// Reads elements of a tensor as SafetensorsReader::read does.
  using Read = std::function<void(const StoredTensor&, std::uint64_t, std::uint64_t, std::byte*)>;

  /// Takes codes and their parts out of `tensors` and puts in the weights, as F32. `files`: for messages. Throws
  /// Error(bad_input) that names the weight when its parts do not fit together.
  CodedTensors(const Coding& coding, Tensors& tensors, const std::vector<std::filesystem::path>& files, Read read);
  ~CodedTensors();

  [[nodiscard]] bool contains(const std::string& name) const { return decoders_.contains(name); }
  /// Elements [first, first + count) of a weight that is there. From several threads.
  void read(const std::string& name, std::uint64_t first, std::uint64_t count, float* out) const;

  class Decoder;

 private:
  std::map<std::string, std::unique_ptr<Decoder>> decoders_;
};

}  // namespace spillway::state
