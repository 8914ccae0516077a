#include "spillway/state/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/base/interrupt.h"
#include "spillway/kernels/packed.h"
#include "spillway/state/convert.h"
#include "spillway/state/dtype.h"
#include "spillway/state/source.h"

namespace spillway::state {
namespace {

/// Elements that are converted at a time.
constexpr std::uint64_t kCopyPiece = 64 * 1024;

/// The mean of a tensor's scales, of what the source has of it.
float scale_mean(const Source& source, std::size_t number, const Tensor& tensor, std::span<float> piece) {
  kernels::ScaleMean mean;
  while (source.find(number) != nullptr && mean.values() < tensor.elements) {
    const auto n = std::min<std::uint64_t>(piece.size(), tensor.elements - mean.values());
    source.read_fp32(number, mean.values(), n, piece.data());
    mean.add(piece.data(), n);
  }
  return mean.mean();
}

void load_masters(const Source& source, const Span& span, const ChunkFields& fields, std::span<float> piece) {
  for (std::uint64_t at = 0; at < span.elements; at += piece.size()) {
    const auto n = std::min<std::uint64_t>(piece.size(), span.elements - at);
    source.read_fp32(span.tensor, span.tensor_first + at, n, piece.data());
    source.require_finite(span.tensor, span.tensor_first + at, piece.first(n), fields.type);
    to_chunk(piece.first(n), fields, span.chunk_first + at);
  }
}

/// A span of packed weights as layers multiply by them.
void save_packed(SafetensorsWriter& writer, std::size_t number, const ChunkStream& stream, const Chunk& chunk,
                 const Span& span) {
  const auto unit = field_bytes(stream.rule.type).weight;
  const auto encoding = encoding_of(chunk.form, stream.rule.type);
  std::vector<std::byte> piece(std::min(kCopyPiece, span.elements) * unit);
  for (std::uint64_t at = 0; at < span.elements; at += kCopyPiece) {
    const auto n = std::min(kCopyPiece, span.elements - at);
    kernels::unpack(encoding, stream.scratch.data(), chunk.values(), span.chunk_first + at, n,
                    encoding_of(Form::as_run, stream.rule.type), piece.data());
    writer.write(number, span.tensor_first + at, std::span(piece).first(n * unit));
  }
}

}  // namespace

Bytes scratch_bytes(const Layout& layout, const UpdateRule& rule) noexcept {
  return largest_chunk_bytes(rule, layout);
}

void check_scratch(const ChunkStream& stream) {
  const auto needed = scratch_bytes(stream.layout, stream.rule);
  if (stream.scratch.size() < needed) {
    throw Error(ErrorCode::internal, text("scratch of ", stream.scratch.size(), " bytes for a chunk of ", needed));
  }
}

void load_weights(const ChunkStream& stream, const SafetensorsReader& checkpoint, const StoredNames& names) {
  check_scratch(stream);
  const auto& files = checkpoint.files();
  const auto where = files.size() == 1 ? files.front() : files.front().parent_path();
  const Source source(stream.layout, checkpoint, where.string(), names);
  source.check_types(kToFp32);
  std::vector<float> piece(kCopyPiece);
  float mean = 0;
  for (const auto& chunk : stream.layout.chunks()) {
    throw_if_interrupted();
    auto* weight = stream.scratch.data();
    auto* state = weight + weight_bytes(stream.rule, chunk);
    std::memset(weight, 0, weight_bytes(stream.rule, chunk) + state_bytes(stream.rule, chunk));
    auto fields = chunk_fields(stream.rule.type, chunk, weight, state);
    for (const auto& span : stream.layout.spans(chunk.id)) {
      if (needs_scale_mean(chunk.form) && span.tensor_first == 0) {  // its other chunks follow this one
        mean = scale_mean(source, span.tensor, stream.layout.tensors()[span.tensor], piece);
      }
      fields.scale_mean = mean;
      if (source.find(span.tensor) != nullptr) load_masters(source, span, fields, piece);
    }
    stream.store.store(chunk.id, weight, state);
  }
}

void save_weights(const ChunkStream& stream, const std::filesystem::path& directory, const SaveOptions& options) {
  check_scratch(stream);
  constexpr auto kAbsent = ~std::size_t{0};
  std::vector<TensorOut> tensors;
  std::vector<std::size_t> numbers;  // of tensors of the layout, in the files
  for (const auto& tensor : stream.layout.tensors()) {
    const auto& name = stored_name(options.names, tensor.spec.name);
    numbers.push_back(name.empty() ? kAbsent : tensors.size());
    if (!name.empty()) tensors.push_back({name, traits(rule_of(stream.rule, tensor).type).dtype, tensor.spec.shape});
  }
  SafetensorsWriter writer(directory, "model", std::move(tensors), options.max_shard);
  for (const auto& chunk : stream.layout.chunks()) {
    const auto unit = field_bytes(rule_of(stream.rule, chunk).type).weight;
    const auto& spans = stream.layout.spans(chunk.id);
    if (std::ranges::all_of(spans, [&](const Span& span) { return numbers[span.tensor] == kAbsent; })) continue;
    throw_if_interrupted();
    stream.store.load(chunk.id, stream.scratch.data(), nullptr);
    for (const auto& span : spans) {
      if (numbers[span.tensor] == kAbsent) continue;
      if (is_packed(chunk.form)) {
        save_packed(writer, numbers[span.tensor], stream, chunk, span);
        continue;
      }
      writer.write(numbers[span.tensor], span.tensor_first,
                   stream.scratch.subspan(span.chunk_first * unit, span.elements * unit));
    }
  }
  writer.finish();
}

}  // namespace spillway::state
