#include "spillway/state/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <system_error>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/state/convert.h"
#include "spillway/state/dtype.h"

namespace spillway::state {
namespace {

namespace fs = std::filesystem;

/// One array of the state group and the file that holds it.
struct StateField {
  const char* name;
  const char* dtype;
  Bytes bytes;  ///< of one element
  std::byte* (*data)(const ChunkFields& chunk);
};

constexpr std::array<StateField, 3> kStateFields{{
    {"residual", "U16", 2, [](const ChunkFields& chunk) { return reinterpret_cast<std::byte*>(chunk.residual); }},
    {"exp_avg", "F32", 4, [](const ChunkFields& chunk) { return reinterpret_cast<std::byte*>(chunk.exp_avg); }},
    {"exp_avg_sq", "F32", 4, [](const ChunkFields& chunk) { return reinterpret_cast<std::byte*>(chunk.exp_avg_sq); }},
}};

std::span<const StateField> state_fields(ComputeType type) {
  return std::span(kStateFields).subspan(type == ComputeType::bf16 ? 0 : 1);
}

const char* weight_dtype(ComputeType type) {
  return type == ComputeType::bf16 ? "BF16" : "F32";
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) out += text(i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

const std::string& stored_name(const StoredNames& names, const std::string& name) {
  const auto found = names.find(name);
  return found == names.end() ? name : found->second;
}

std::string file_name(const fs::path& directory, const StateField& field) {
  return (directory / (std::string(field.name) + ".safetensors")).string();
}

/// The scratch memory cut to one chunk.
struct Groups {
  std::byte* weight;
  std::byte* state;
  ChunkFields fields;
};

Groups groups(const ChunkStream& stream, const Chunk& chunk) {
  const auto bytes = field_bytes(stream.type);
  std::byte* weight = stream.scratch.data();
  std::byte* state = weight + chunk.elements * bytes.weight;
  return {weight, state, chunk_fields(stream.type, chunk.elements, weight, state)};
}

void check_scratch(const ChunkStream& stream) {
  const auto needed = scratch_bytes(stream.layout, stream.type);
  if (stream.scratch.size() < needed) {
    throw Error(ErrorCode::internal, text("scratch of ", stream.scratch.size(), " bytes for a chunk of ", needed));
  }
}

/// ". Did you mean X?" when a stored name differs by a prefix only.
std::string suggestion(const SafetensorsReader& reader, const std::string& name) {
  for (const auto& [stored, tensor] : reader.tensors()) {
    if (stored.ends_with("." + name) || name.ends_with("." + stored)) return text("; it has ", stored);
  }
  return {};
}

/// One file set that is about to be read: each tensor of the layout found, and found to be what the layout says.
class Source {
 public:
  Source(const Layout& layout, const SafetensorsReader& reader, const std::string& where, const StoredNames& names)
      : reader_(reader) {
    for (const auto& tensor : layout.tensors()) {
      const auto& name = stored_name(names, tensor.spec.name);
      const auto* stored = reader.find(name);
      if (stored == nullptr) {
        refuse(where, text(where, " has no tensor ", name, suggestion(reader, name)));
      }
      if (stored->shape != tensor.spec.shape) {
        refuse(file(*stored), text("tensor ", name, " has the shape ", shape_text(stored->shape), " in ", file(*stored),
                                   ", but the model needs ", shape_text(tensor.spec.shape)));
      }
      tensors_.push_back(stored);
    }
  }

  /// `allowed` says which types do; `needed` names them.
  void check_types(const std::function<bool(const std::string&)>& allowed, const char* needed) const {
    for (const auto* tensor : tensors_) {
      if (allowed(tensor->dtype)) continue;
      refuse(file(*tensor), text("tensor ", tensor->name, " is ", tensor->dtype, " in ", file(*tensor), ", but ",
                                 needed, " is needed"));
    }
  }

  /// Refuses a tensor that the layout does not have.
  void check_no_more() const {
    if (reader_.tensors().size() == tensors_.size()) return;
    for (const auto& [name, tensor] : reader_.tensors()) {
      if (std::find(tensors_.begin(), tensors_.end(), &tensor) != tensors_.end()) continue;
      refuse(file(tensor), text(file(tensor), " has the tensor ", name, ", which the model being trained does not"));
    }
  }

  void read_fp32(const Span& span, float* chunk) const {
    reader_.read_fp32(*tensors_[span.tensor], span.tensor_first, span.elements, chunk + span.chunk_first);
  }
  void read_raw(const Span& span, std::byte* chunk) const {
    const auto& tensor = *tensors_[span.tensor];
    reader_.read(tensor, span.tensor_first, span.elements, chunk + span.chunk_first * tensor.element_bytes);
  }

 private:
  [[nodiscard]] std::string file(const StoredTensor& tensor) const { return reader_.files()[tensor.file].string(); }
  [[noreturn]] static void refuse(const std::string& path, const std::string& message) {
    throw Error(ErrorCode::bad_input, message, 0, path);
  }

  const SafetensorsReader& reader_;
  std::vector<const StoredTensor*> tensors_;  ///< by number in the layout
};

std::vector<TensorOut> tensors_out(const Layout& layout, const char* dtype, const StoredNames& names = {}) {
  std::vector<TensorOut> out;
  for (const auto& tensor : layout.tensors()) {
    out.push_back({stored_name(names, tensor.spec.name), dtype, tensor.spec.shape});
  }
  return out;
}

void write_span(SafetensorsWriter& writer, const Span& span, const std::byte* chunk, Bytes unit) {
  writer.write(span.tensor, span.tensor_first, {chunk + span.chunk_first * unit, span.elements * unit});
}

void make_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directory(directory, error);
  if (error) {
    throw Error(ErrorCode::io, text("cannot make the directory ", directory.string(), ": ", error.message()),
                error.value(), directory.string());
  }
}

}  // namespace

Bytes scratch_bytes(const Layout& layout, ComputeType type) noexcept {
  const auto bytes = field_bytes(type);
  return layout.largest_chunk() * (bytes.weight + bytes.state);
}

void load_weights(const ChunkStream& stream, const SafetensorsReader& checkpoint, const StoredNames& names) {
  check_scratch(stream);
  const auto& files = checkpoint.files();
  const auto where = files.size() == 1 ? files.front() : files.front().parent_path();
  const Source source(stream.layout, checkpoint, where.string(), names);
  source.check_types(converts_to_fp32, "BF16, F16, F32 or F64");
  for (const auto& chunk : stream.layout.chunks()) {
    const auto [weight, state, fields] = groups(stream, chunk);
    std::memset(state, 0, chunk.elements * field_bytes(stream.type).state);
    // The first moment's place holds the masters until they are split.
    const std::span masters(fields.exp_avg, chunk.elements);
    for (const auto& span : stream.layout.spans(chunk.id)) source.read_fp32(span, masters.data());
    to_chunk(masters, fields, 0);
    std::memset(masters.data(), 0, masters.size_bytes());
    stream.store.store(chunk.id, weight, state);
  }
}

void save_weights(const ChunkStream& stream, const fs::path& directory, const SaveOptions& options) {
  check_scratch(stream);
  SafetensorsWriter writer(directory, "model", tensors_out(stream.layout, weight_dtype(stream.type), options.names),
                           options.max_shard);
  const auto unit = field_bytes(stream.type).weight;
  for (const auto& chunk : stream.layout.chunks()) {
    stream.store.load(chunk.id, stream.scratch.data(), nullptr);
    for (const auto& span : stream.layout.spans(chunk.id)) write_span(writer, span, stream.scratch.data(), unit);
  }
  writer.finish();
}

void save_state(const ChunkStream& stream, const fs::path& directory) {
  check_scratch(stream);
  make_directory(directory);
  const auto fields = state_fields(stream.type);
  std::vector<std::unique_ptr<SafetensorsWriter>> writers;
  for (const auto& field : fields) {
    writers.push_back(
        std::make_unique<SafetensorsWriter>(directory, field.name, tensors_out(stream.layout, field.dtype), ~Bytes{0}));
  }
  for (const auto& chunk : stream.layout.chunks()) {
    const auto there = groups(stream, chunk);
    stream.store.load(chunk.id, nullptr, there.state);
    for (const auto& span : stream.layout.spans(chunk.id)) {
      for (std::size_t i = 0; i < fields.size(); ++i) {
        write_span(*writers[i], span, fields[i].data(there.fields), fields[i].bytes);
      }
    }
  }
  for (auto& writer : writers) writer->finish();
}

void load_state(const ChunkStream& stream, const fs::path& directory, const fs::path& weights,
                const StoredNames& names) {
  check_scratch(stream);
  const SafetensorsReader weight_reader(weights);
  const Source weight_source(stream.layout, weight_reader, weights.string(), names);
  const std::string dtype = weight_dtype(stream.type);
  weight_source.check_types([&](const std::string& stored) { return stored == dtype; }, dtype.c_str());

  const auto fields = state_fields(stream.type);
  std::vector<std::unique_ptr<SafetensorsReader>> readers;
  std::vector<Source> sources;
  for (const auto& field : fields) {
    const auto file = file_name(directory, field);
    readers.push_back(std::make_unique<SafetensorsReader>(file));
    sources.emplace_back(stream.layout, *readers.back(), file, StoredNames{});
    sources.back().check_types([&](const std::string& stored) { return stored == field.dtype; }, field.dtype);
    sources.back().check_no_more();
  }
  for (const auto& chunk : stream.layout.chunks()) {
    const auto there = groups(stream, chunk);
    std::memset(there.weight, 0, chunk.elements * (field_bytes(stream.type).weight + field_bytes(stream.type).state));
    for (const auto& span : stream.layout.spans(chunk.id)) {
      weight_source.read_raw(span, there.weight);
      for (std::size_t i = 0; i < fields.size(); ++i) sources[i].read_raw(span, fields[i].data(there.fields));
    }
    stream.store.store(chunk.id, there.weight, there.state);
  }
}

}  // namespace spillway::state
