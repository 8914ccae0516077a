#include "spillway/state/rule.h"

#include <string>

#include "spillway/base/error.h"

namespace spillway::state {
namespace {

constexpr std::array kComputeTypes{ComputeType::bf16, ComputeType::fp16, ComputeType::fp32};
constexpr std::array kPackedForms{Form::nf4, Form::int8};
constexpr std::array kFormats{StateFormat::exact, StateFormat::bf16, StateFormat::int8};

/// The kinds that a table has rows of.
template <class Value, class Row, std::size_t n>
constexpr std::array<Value, n> kinds_of(const std::array<Row, n>& /*table*/) {
  std::array<Value, n> out;
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<Value>(i);
  return out;
}

template <class Value, std::size_t n>
Value parse(const char* key, std::string_view name, const std::array<Value, n>& known) {
  std::string names;
  for (const auto value : known) {
    if (name == name_of(value)) return value;
    names += text(names.empty() ? "" : ", ", name_of(value));
  }
  throw Error(ErrorCode::bad_input, text(key, " is ", name, "; known: ", names));
}

std::byte* at(std::byte* group, Bytes bytes) {
  return group == nullptr ? nullptr : group + bytes;
}

}  // namespace

Located locate(const UpdateRule& of_all, const Chunk& chunk, const Span& span, const GroupPointers& groups,
               std::uint64_t first, std::uint64_t n) {
  const auto rule = rule_of(of_all, chunk);
  const auto bytes = field_bytes(rule.type);
  const auto fields = state_fields(rule, chunk);
  auto* const state = has_state(chunk.training) ? groups.state : nullptr;
  const bool inside = chunk.training == Training::reduced;
  const auto kept = moments_of(rule.format, span.is_unquantised());
  const bool apart = rule.format == StateFormat::int8 && kept == kernels::Moments::fp32;
  Located out{
      .form = {.weights = form_of(rule).weights, .moments = kept},
      .span = {.weight = at(groups.weight, first * bytes.weight),
               .remainder = remainder_bytes(rule.type) == 0 ? nullptr : at(state, first * remainder_bytes(rule.type)),
               .grad = groups.grad == nullptr || inside ? nullptr : groups.grad + first * bytes.grad,
               .n = n,
               .index = (std::uint64_t{chunk.block} << 40) | (chunk.index + first)}};
  for (std::size_t m = 0; m < rule.moments() && !inside; ++m) {
    const auto unquantised = fields.unquantised[m] + (span.unquantised + first - span.chunk_first) * sizeof(float);
    out.span.moments[m] = at(state, apart ? unquantised : fields.moments[m] + first * moment_bytes(rule.format));
    if (out.form.moments != kernels::Moments::int8) continue;
    const auto scale = fields.scales[m] + first / kernels::kQuantBlock * sizeof(float);
    out.span.scales[m] = reinterpret_cast<float*>(at(state, scale));
  }
  return out;
}

Located locate_gradient(const UpdateRule& of_all, const Chunk& chunk, const GroupPointers& groups, std::uint64_t first,
                        std::uint64_t n) {
  const auto rule = rule_of(of_all, chunk);
  const auto bytes = field_bytes(rule.type);
  const auto fields = state_fields(rule, chunk);
  const bool unquantised = chunk.unquantised > 0;
  const auto kept = moments_of(rule.format, unquantised);
  const bool apart = unquantised && rule.format == StateFormat::int8;
  Located out{.form = {.weights = kernels::Weights::fp32, .moments = kept},
              .span = {.grad = groups.grad == nullptr ? nullptr : groups.grad + first * bytes.grad,
                       .n = n,
                       .index = (std::uint64_t{chunk.block} << 40) | (chunk.index + first)}};
  for (std::size_t m = 0; m < rule.moments(); ++m) {
    out.span.moments[m] = at(groups.state, apart ? fields.unquantised[m] + first * sizeof(float)
                                                 : fields.moments[m] + first * moment_bytes(kept));
    if (kept != kernels::Moments::int8) continue;
    const auto scale = fields.scales[m] + first / kernels::kQuantBlock * sizeof(float);
    out.span.scales[m] = reinterpret_cast<float*>(at(groups.state, scale));
  }
  return out;
}

optim::MatrixSpan matrix_of(const UpdateRule& rule, const Chunk& chunk, const GroupPointers& groups) {
  const auto own = rule_of(rule, chunk);
  const auto fields = state_fields(rule, chunk);
  optim::MatrixSpan out{.rows = chunk.rows,
                        .columns = chunk.columns,
                        .weights = form_of(own).weights,
                        .weight = groups.weight,
                        .remainder = remainder_bytes(own.type) == 0 ? nullptr : groups.state,
                        .grad = groups.grad};
  for (std::size_t m = 0; m < own.moments(); ++m) {
    out.fields[m] = reinterpret_cast<float*>(at(groups.state, fields.moments[m]));
  }
  return out;
}

std::vector<NamedArray> weight_arrays(const UpdateRule& rule, const Chunk& chunk) {
  const auto encoding = encoding_of(chunk.form, rule.type);
  if (!is_packed(chunk.form)) return {{"weight", 0, weight_bytes(rule, chunk), kernels::code_bytes(encoding, 1)}};
  const auto scales = kernels::scales_at(encoding, chunk.values());
  return {{"weight", 0, scales, 1, chunk.values() / scales},
          {"weight_scale", scales, kernels::encoded_bytes(encoding, chunk.values()) - scales, sizeof(float),
           kernels::kPackedBlock}};
}

std::vector<NamedArray> state_arrays(const UpdateRule& of_all, const Chunk& chunk) {
  const auto rule = rule_of(of_all, chunk);
  std::vector<NamedArray> out;
  if (!has_state(chunk.training)) return out;
  const auto fields = state_fields(rule, chunk);
  const auto add = [&](const std::string& name, Bytes first, std::uint64_t entries, Bytes item, std::uint64_t covers) {
    if (entries > 0) out.push_back({name, first, entries * item, item, covers});
  };
  const auto remainder = remainder_bytes(rule.type);
  if (remainder > 0) add(remainder_name(rule.type), 0, chunk.values(), remainder, 1);
  for (std::size_t m = 0; m < rule.moments(); ++m) {
    add(rule.optimizer->fields[m], fields.moments[m], chunk.gradient_elements, moment_bytes(rule.format), 1);
  }
  for (std::size_t m = 0; m < rule.moments() && rule.format == StateFormat::int8; ++m) {
    add(scale_name(rule.optimizer->fields[m]), fields.scales[m], chunk.gradient_elements / kernels::kQuantBlock,
        sizeof(float), kernels::kQuantBlock);
  }
  for (std::size_t m = 0; m < rule.moments() && rule.format == StateFormat::int8; ++m) {
    add(rule.optimizer->fields[m], fields.unquantised[m], chunk.unquantised, sizeof(float), 0);
  }
  add(chunk.reduced.by->auxiliary, fields.auxiliary, chunk.reduced.auxiliary_bytes() / sizeof(float), sizeof(float), 1);
  return out;
}

std::string scale_name(const char* field) {
  return std::string(field) + "_scale";
}

const char* remainder_name(ComputeType type) noexcept {
  return type == ComputeType::bf16 ? "residual" : type == ComputeType::fp16 ? "master" : "";
}

const char* name_of(ComputeType type) noexcept {
  return type == ComputeType::bf16 ? "bf16" : type == ComputeType::fp16 ? "fp16" : "fp32";
}

const char* name_of(StateFormat format) noexcept {
  return format == StateFormat::exact ? "exact" : format == StateFormat::bf16 ? "bf16" : "int8";
}

void check_format(const UpdateRule& rule) {
  if (rule.optimizer->keeps(moments_of(rule.format, false))) return;
  std::string known;
  for (const auto format : kFormats) {
    if (rule.optimizer->keeps(moments_of(format, false))) known += text(known.empty() ? "" : ", ", name_of(format));
  }
  throw Error(ErrorCode::bad_input, text("state_format is ", name_of(rule.format), "; ", rule.optimizer->name,
                                         " keeps its state in: ", known));
}

ComputeType parse_compute_type(std::string_view name) {
  return parse("compute_dtype", name, kComputeTypes);
}

ComputeType parse_weight_type(std::string_view name) {
  return parse("weight_dtype", name, kComputeTypes);
}
StateFormat parse_format(std::string_view name) {
  return parse("state_format", name, kFormats);
}
Form parse_packed_form(std::string_view name) {
  return parse("the form of packed weights", name, kPackedForms);
}

BlockRole parse_role(std::string_view name) {
  return parse("the role of a block", name, kinds_of<BlockRole>(kRoles));
}

}  // namespace spillway::state
