#include "spillway/state/saved_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>

#include "spillway/base/error.h"
#include "spillway/base/interrupt.h"
#include "spillway/kernels/moments.h"
#include "spillway/state/checkpoint.h"
#include "spillway/state/source.h"

namespace spillway::state {
namespace {

namespace fs = std::filesystem;
using kernels::kQuantBlock;
using kernels::Moments;
using Shape = std::vector<std::int64_t>;

/// Elements that are converted at a time: whole blocks of codes.
constexpr std::uint64_t kPiece = 64 * 1024;
static_assert(kPiece % kQuantBlock == 0);

fs::path path_of(const fs::path& directory, const std::string& name) {
  return directory / (name + ".safetensors");
}

/// The optimizers of a run's tensors.
std::vector<const optim::Descriptor*> optimizers_of(const UpdateRule& rule) {
  std::vector<const optim::Descriptor*> out{rule.optimizer};
  if (rule.optimizer->others != nullptr) out.push_back(rule.optimizer->others);
  return out;
}

/// Which moment of a tensor is called so; empty where its optimizer keeps none of that name.
std::optional<std::size_t> moment_of(const UpdateRule& rule, const Tensor& tensor, std::string_view field) {
  const auto fields = rule_of(rule, tensor).optimizer->fields;
  const auto at = std::ranges::find(fields, field);
  if (at == fields.end() || !has_state(tensor.spec.training)) return std::nullopt;
  return static_cast<std::size_t>(at - fields.begin());
}

Moments kept_by(const UpdateRule& rule, const Tensor& tensor) {
  return moments_of(rule.state_format, tensor.gradient_elements() < kUnquantisedBelow);
}

/// In a run whose other weights have one.
bool has_remainder(const Tensor& tensor) {
  return has_state(tensor.spec.training) && tensor.spec.form == Form::as_run;
}

Shape scale_shape(const Tensor& tensor) {
  return {static_cast<std::int64_t>(scales_of(tensor.gradient_elements()))};
}

/// The scales of a span: its first element starts a block.
struct ScaleSpan {
  explicit ScaleSpan(const Span& span)
      : first(span.tensor_first / kQuantBlock), count(ceil_div(span.elements, kQuantBlock)) {}
  std::uint64_t first, count;
};

/// The arrays of a span: its weight and remainder, and its moments, which are those of S where it is reduced.
struct Places {
  Places(const UpdateRule& rule, const Chunk& chunk, const Span& of, const GroupPointers& groups)
      : span(of), inner(of), at(locate(rule, chunk, of, groups, of.chunk_first, of.elements)), moments(at) {
    if (!chunk.reduced.any()) return;
    inner.elements = chunk.reduced.elements();
    moments = locate_gradient(rule, chunk, groups, 0, inner.elements);
  }
  Span span, inner;
  Located at, moments;
};

// ---- out

/// One file that is being written.
class FileOut {
 public:
  FileOut(const ChunkStream& stream, const StateFile& file, const fs::path& directory) : file_(file) {
    std::vector<TensorOut> list;
    for (const auto& tensor : stream.layout.tensors()) {
      const auto kept = kept_by(stream.rule, tensor);
      const bool unscaled = file.holds == StateFile::Holds::scale && !traits(kept).is_scaled;
      const bool without_remainder = file.holds == StateFile::Holds::remainder && !has_remainder(tensor);
      const auto moment = moment_of(stream.rule, tensor, file.field);
      const bool other = file.holds != StateFile::Holds::remainder && !moment;
      const bool absent = unscaled || without_remainder || other || !has_state(tensor.spec.training);
      moments_.push_back(moment.value_or(0));
      numbers_.push_back(absent ? kAbsent : list.size());
      if (absent) continue;
      if (file.holds == StateFile::Holds::scale) {
        list.push_back({tensor.spec.name, "F32", scale_shape(tensor)});
      } else {
        const bool whole = file.holds == StateFile::Holds::remainder;
        const auto* dtype = whole ? traits(stream.rule.type).remainder_dtype : traits(kept).dtype;
        list.push_back({tensor.spec.name, dtype, whole ? tensor.spec.shape : tensor.gradient_shape()});
      }
    }
    if (!list.empty()) writer_.emplace(directory, file.name, std::move(list), ~Bytes{0}, kPrivate);
  }

  void write(const UpdateRule& rule, const Places& places) {
    const auto& moments = places.moments;
    const auto moment = moments_[places.span.tensor];
    if (numbers_[places.span.tensor] == kAbsent) return;
    switch (file_.holds) {
      case StateFile::Holds::remainder:
        return put(places.span, places.at.span.remainder, remainder_bytes(rule));
      case StateFile::Holds::moment:
        return put(places.inner, moments.span.moments[moment], traits(moments.form.moments).bytes);
      case StateFile::Holds::scale:
        const ScaleSpan scales(places.inner);
        const std::span values(moments.span.scales[moment], scales.count);
        writer_->write(numbers_[places.inner.tensor], scales.first, std::as_bytes(values));
    }
  }

  void finish() {
    if (writer_) writer_->finish();
  }

 private:
  static constexpr std::size_t kAbsent = ~std::size_t{0};

  void put(const Span& span, const std::byte* data, Bytes unit) {
    writer_->write(numbers_[span.tensor], span.tensor_first, {data, span.elements * unit});
  }

  const StateFile file_;
  std::vector<std::size_t> numbers_;  ///< of tensors of the layout, in the file
  std::vector<std::size_t> moments_;  ///< of the same, which moment the file holds
  std::optional<SafetensorsWriter> writer_;
};

/// The auxiliary fields of all matrices that are reduced.
class AuxiliaryOut {
 public:
  AuxiliaryOut(const Layout& layout, const fs::path& directory) {
    std::vector<TensorOut> list;
    for (const auto& tensor : layout.tensors()) {
      first_.push_back(list.size());
      if (!tensor.reduced.any()) continue;
      for (auto& part : tensor.reduced.by->parts(tensor.reduced)) {
        list.push_back({tensor.spec.name + part.suffix, part.dtype, std::move(part.shape)});
      }
    }
    if (list.empty()) return;
    writer_.emplace(directory, layout.reduction()->auxiliary, std::move(list), ~Bytes{0}, kPrivate);
  }

  void write(const Chunk& chunk, std::size_t tensor, const std::byte* fields) {
    if (!chunk.reduced.any()) return;
    auto number = first_[tensor];
    for (const auto& part : chunk.reduced.by->parts(chunk.reduced))
      writer_->write(number++, 0, {fields + part.first, part.bytes});
  }

  void finish() {
    if (writer_) writer_->finish();
  }

 private:
  std::vector<std::size_t> first_;  ///< by tensor of the layout: number in the file
  std::optional<SafetensorsWriter> writer_;
};

void make_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directory(directory, error);
  if (error) {
    throw Error(ErrorCode::io, text("cannot make the directory ", directory.string(), ": ", error.message()),
                error.value(), directory.string());
  }
}

// ---- in

/// In files of what is trainable.
std::optional<Shape> shape_of(const Tensor& tensor) {
  return has_state(tensor.spec.training) ? std::optional(tensor.spec.shape) : std::nullopt;
}

std::optional<Shape> remainder_shape_of(const Tensor& tensor) {
  return has_remainder(tensor) ? std::optional(tensor.spec.shape) : std::nullopt;
}

/// One file that is about to be read.
struct FileIn {
  FileIn(const Layout& layout, const fs::path& file, const Source::Shape& shape = shape_of)
      : reader(std::make_unique<SafetensorsReader>(file)), source(layout, *reader, file.string(), {}, shape) {
    source.check_no_more();
  }
  std::unique_ptr<SafetensorsReader> reader;
  Source source;
};

FileIn open_remainder(const ChunkStream& stream, const fs::path& directory, const StateFile& file) {
  FileIn out(stream.layout, path_of(directory, file.name), remainder_shape_of);
  out.source.check_types(std::array{std::string_view(traits(stream.rule.type).remainder_dtype)});
  return out;
}

/// One moment as it was saved, in whatever form.
class MomentIn {
 public:
  MomentIn(const ChunkStream& stream, const fs::path& directory, const char* field)
      : rule_(stream.rule), field_(field), values_(stream.layout, path_of(directory, field), [&](const Tensor& tensor) {
          return moment_of(stream.rule, tensor, field) ? std::optional(tensor.gradient_shape()) : std::nullopt;
        }) {
    std::array<std::string_view, kernels::kMomentFormats.size()> types;
    std::ranges::transform(kernels::kMomentFormats, types.begin(), &kernels::MomentsTraits::dtype);
    values_.source.check_types(types);
    for (const auto& tensor : stream.layout.tensors()) {
      moments_.push_back(moment_of(rule_, tensor, field));
      if (moments_.back()) open_scales(stream.layout, directory, tensor.spec.name);
    }
  }

  /// The one found that takes least.
  [[nodiscard]] StateFormat format(const Layout& layout) const {
    auto out = StateFormat::exact;
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      if (moments_[t]) out = std::max(out, saved(t));
    }
    return out;
  }

  void read(const Span& span, const Located& to) {
    const auto moment = moments_[span.tensor];
    if (!moment) return;
    if (saved(span.tensor) != to.form.moments) return convert(span, to);
    values_.source.read(span.tensor, span.tensor_first, span.elements, to.span.moments[*moment]);
    if (traits(to.form.moments).is_scaled) read_scales(span.tensor, ScaleSpan(span), to.span.scales[*moment]);
  }

 private:
  [[nodiscard]] Moments saved(std::size_t tensor) const { return *moments_of(values_.source.find(tensor)->dtype); }

  void open_scales(const Layout& layout, const fs::path& directory, const std::string& name) {
    const auto is_scaled = [&](const std::string& of) {
      return traits(*moments_of(values_.reader->find(of)->dtype)).is_scaled;
    };
    if (scales_ || !is_scaled(name)) return;
    const auto shape = [&](const Tensor& tensor) -> std::optional<Shape> {
      if (!moment_of(rule_, tensor, field_) || !is_scaled(tensor.spec.name)) return std::nullopt;
      return scale_shape(tensor);
    };
    scales_.emplace(layout, path_of(directory, scale_name(field_)), shape);
    scales_->source.check_types(std::array<std::string_view, 1>{"F32"});
  }

  void read_scales(std::size_t tensor, const ScaleSpan& scales, float* out) const {
    scales_->source.read(tensor, scales.first, scales.count, reinterpret_cast<std::byte*>(out));
  }

  void convert(const Span& span, const Located& to) {
    for (std::uint64_t at = 0; at < span.elements; at += kPiece) {
      const auto values = read_fp32(span.tensor, span.tensor_first + at, std::min(kPiece, span.elements - at));
      write_fp32(values, *moments_[span.tensor], to, at);
    }
  }

  /// Elements of a tensor, wherever in a block of codes they begin.
  std::span<const float> read_fp32(std::size_t tensor, std::uint64_t first, std::uint64_t count) {
    const auto& kept = traits(saved(tensor));
    const auto before = kept.is_scaled ? first % kQuantBlock : 0;
    const auto all = before + count;
    fp32_.resize(all);
    if (!kept.is_scaled) {
      values_.source.read_fp32(tensor, first, all, fp32_.data());
    } else {
      codes_.resize(all * kept.bytes);
      block_scales_.resize(scales_of(all));
      values_.source.read(tensor, first - before, all, codes_.data());
      scales_->source.read_fp32(tensor, first / kQuantBlock, block_scales_.size(), block_scales_.data());
      kept.decode(*moments_[tensor], codes_.data(), block_scales_.data(), fp32_.data(), all);
    }
    return std::span(fp32_).subspan(before);
  }

  /// To elements `at` and on of a span, which start a block.
  static void write_fp32(std::span<const float> values, std::size_t moment, const Located& to, std::uint64_t at) {
    const auto& kept = traits(to.form.moments);
    auto* scales = kept.is_scaled ? to.span.scales[moment] + at / kQuantBlock : nullptr;
    kept.encode(moment, values.data(), to.span.moments[moment] + at * kept.bytes, scales, values.size());
  }

  const UpdateRule rule_;
  const char* const field_;
  std::vector<std::optional<std::size_t>> moments_;  ///< by tensor: which of its moments that is
  FileIn values_;
  std::optional<FileIn> scales_;
  std::vector<float> fp32_, block_scales_;
  std::vector<std::byte> codes_;
};

/// The auxiliary fields as they were saved. Throws Error(bad_input) naming the first that is missing or of another
/// shape.
class AuxiliaryIn {
 public:
  AuxiliaryIn(const Layout& layout, const fs::path& directory) : layout_(layout) {
    if (layout.reduction() == nullptr) return;
    file_ = path_of(directory, layout.reduction()->auxiliary);
    reader_.emplace(file_);
    for (const auto& tensor : layout.tensors()) {
      if (!tensor.reduced.any()) continue;
      for (const auto& part : tensor.reduced.by->parts(tensor.reduced)) check(tensor.spec.name + part.suffix, part);
    }
  }

  void read(const Chunk& chunk, std::size_t tensor, std::byte* fields) const {
    if (!chunk.reduced.any()) return;
    for (const auto& part : chunk.reduced.by->parts(chunk.reduced)) {
      const auto& stored = *reader_->find(layout_.tensors()[tensor].spec.name + part.suffix);
      reader_->read(stored, 0, stored.elements, fields + part.first);
    }
  }

 private:
  void check(const std::string& name, const optim::AuxiliaryPart& part) const {
    const auto* stored = reader_->find(name);
    if (stored != nullptr && stored->shape == part.shape && stored->dtype == part.dtype) return;
    throw Error(ErrorCode::bad_input,
                text(file_.string(), stored == nullptr ? " has no " : " has another shape or type of ", name,
                     ": its run had ", layout_.reduction()->others),
                0, file_.string());
  }

  fs::path file_;
  const Layout& layout_;
  std::optional<SafetensorsReader> reader_;
};

/// A state that has a moment more is one of another optimizer.
void check_optimizer(const UpdateRule& rule, const fs::path& directory) {
  const auto keeps = [](const optim::Descriptor* it, std::string_view name) {
    return std::ranges::find(it->fields, name) != it->fields.end();
  };
  const auto own = optimizers_of(rule);
  for (const auto* other : optim::all()) {
    for (const std::string_view name : other->fields) {
      const auto file = path_of(directory, std::string(name));
      if (std::ranges::any_of(own, [&](const auto* it) { return keeps(it, name); }) || !fs::exists(file)) continue;
      throw Error(ErrorCode::bad_input,
                  text(file.string(), " is of another optimizer: ", rule.optimizer->name, " keeps no ", name), 0,
                  file.string());
    }
  }
}

}  // namespace

std::vector<StateFile> state_files(const UpdateRule& rule) {
  std::vector<StateFile> out;
  if (remainder_bytes(rule) > 0) out.push_back({StateFile::Holds::remainder, "", traits(rule.type).remainder_name});
  for (const auto* optimizer : optimizers_of(rule)) {
    for (const char* field : optimizer->fields) out.push_back({StateFile::Holds::moment, field, field});
    if (!traits(rule.state_format).is_scaled) continue;
    for (const char* field : optimizer->fields) out.push_back({StateFile::Holds::scale, field, scale_name(field)});
  }
  return out;
}

std::optional<Moments> moments_of(const std::string& dtype) noexcept {
  const auto at = std::ranges::find(kernels::kMomentFormats, dtype, &kernels::MomentsTraits::dtype);
  if (at == kernels::kMomentFormats.end()) return std::nullopt;
  return static_cast<Moments>(at - kernels::kMomentFormats.begin());
}

void save_state(const ChunkStream& stream, const fs::path& directory) {
  check_scratch(stream);
  make_directory(directory);
  std::vector<std::unique_ptr<FileOut>> files;
  for (const auto& file : state_files(stream.rule)) {
    files.push_back(std::make_unique<FileOut>(stream, file, directory));
  }
  AuxiliaryOut auxiliary(stream.layout, directory);
  for (const auto& chunk : stream.layout.chunks()) {
    if (!has_state(chunk.training)) continue;
    throw_if_interrupted();
    auto* state = stream.scratch.data();
    stream.store.load(chunk.id, nullptr, state);
    for (const auto& span : stream.layout.spans(chunk.id)) {
      const Places places(stream.rule, chunk, span, {.state = state});
      for (auto& file : files) file->write(stream.rule, places);
      auxiliary.write(chunk, span.tensor, state + state_fields(stream.rule, chunk).auxiliary);
    }
  }
  for (auto& file : files) file->finish();
  auxiliary.finish();
}

StateFormat load_state(const ChunkStream& stream, const fs::path& directory, const fs::path& weights,
                       const StoredNames& names) {
  check_scratch(stream);
  const auto& rule = stream.rule;
  const SafetensorsReader weight_reader(weights);
  const Source weight_source(stream.layout, weight_reader, weights.string(), names);
  weight_source.check_weights(stream.layout, rule.type);
  check_optimizer(rule, directory);
  std::optional<FileIn> remainder;
  const auto files = state_files(rule);
  const bool any_remainder =
      std::ranges::any_of(stream.layout.tensors(), has_remainder);  // else the file was not written
  if (any_remainder && files.front().holds == StateFile::Holds::remainder)
    remainder.emplace(open_remainder(stream, directory, files.front()));
  std::vector<MomentIn> moments;
  moments.reserve(files.size());
  for (const auto& file : files) {
    if (file.holds == StateFile::Holds::moment) moments.emplace_back(stream, directory, file.field);
  }
  const AuxiliaryIn auxiliary(stream.layout, directory);

  const auto absent = [&](const Span& span) { return weight_source.find(span.tensor) == nullptr; };
  for (const auto& tensor : stream.layout.tensors()) {
    if (has_state(tensor.spec.training) && stored_name(names, tensor.spec.name).empty()) {
      throw Error(ErrorCode::bad_input,
                  text("the weights of ", tensor.spec.name, ", which is trainable, are not to be read"));
    }
    if (is_packed(tensor.spec.form) && !stored_name(names, tensor.spec.name).empty()) {
      throw Error(ErrorCode::bad_input, text(tensor.spec.name, " is kept as ", word_of(tensor.spec.form),
                                             ", of which a saved state holds no codes; it comes from the model"));
    }
  }
  for (const auto& chunk : stream.layout.chunks()) {
    const auto& spans = stream.layout.spans(chunk.id);
    if (!spans.empty() && std::ranges::all_of(spans, absent)) continue;
    if (std::ranges::any_of(spans, absent)) {
      throw Error(ErrorCode::bad_input,
                  text(weights.string(), " holds a part of the frozen tensors of ",
                       stream.layout.blocks()[chunk.block].name, "; all or none are to be there"));
    }
    throw_if_interrupted();
    auto* weight = stream.scratch.data();
    auto* state = weight + weight_bytes(rule, chunk);
    std::memset(weight, 0, weight_bytes(rule, chunk) + state_bytes(rule, chunk));
    for (const auto& span : spans) {
      const Places places(rule, chunk, span, {weight, state});
      weight_source.read(span.tensor, span.tensor_first, span.elements, places.at.span.weight);
      weight_source.require_finite(span.tensor, span.tensor_first, span.elements, places.at.span.weight,
                                   type_of(chunk.form, rule.type));
      if (!has_state(chunk.training)) continue;
      if (remainder && chunk.form == Form::as_run)
        remainder->source.read(span.tensor, span.tensor_first, span.elements, places.at.span.remainder);
      for (auto& moment : moments) moment.read(places.inner, places.moments);
      auxiliary.read(chunk, span.tensor, state + state_fields(rule, chunk).auxiliary);
    }
    stream.store.store(chunk.id, weight, state);
  }
  return moments.front().format(stream.layout);
}

}  // namespace spillway::state
