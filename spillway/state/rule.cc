#include "spillway/state/rule.h"

#include <string>

#include "spillway/base/error.h"

namespace spillway::state {
namespace {

constexpr std::array kPackedForms{Form::nf4, Form::int8, Form::nf4_nested};

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

/// The moments from element `first` of a chunk on; of unquantised tensors from `unquantised` of these.
void locate_moments(const UpdateRule& rule, const StateFields& fields, std::byte* state, std::uint64_t first,
                    std::uint64_t unquantised, Located& out) {
  const auto& kept = traits(out.form.moments);
  const bool apart = out.form.moments != rule.state_format;
  for (std::size_t m = 0; m < rule.moments(); ++m) {
    out.span.moments[m] =
        at(state, apart ? fields.unquantised[m] + unquantised * kept.bytes : fields.moments[m] + first * kept.bytes);
    if (!kept.is_scaled) continue;
    const auto scale = fields.scales[m] + first / kernels::kQuantBlock * sizeof(float);
    out.span.scales[m] = reinterpret_cast<float*>(at(state, scale));
  }
}

}  // namespace

Located locate(const UpdateRule& of_all, const Chunk& chunk, const Span& span, const GroupPointers& groups,
               std::uint64_t first, std::uint64_t n) {
  const auto rule = rule_of(of_all, chunk);
  const auto bytes = field_bytes(rule.type);
  auto* const state = has_state(chunk.training) ? groups.state : nullptr;
  const bool inside = chunk.training == Training::reduced;
  Located out{.form = {.weights = rule.type, .moments = moments_of(rule.state_format, span.is_unquantised())},
              .span = {.weight = at(groups.weight, first * bytes.weight),
                       .remainder = remainder_bytes(rule) == 0 ? nullptr : at(state, first * remainder_bytes(rule)),
                       .grad = groups.grad == nullptr || inside ? nullptr : groups.grad + first * bytes.grad,
                       .n = n,
                       .index = (std::uint64_t{chunk.block} << 40) | (chunk.index + first)}};
  const auto unquantised = span.unquantised + first - span.chunk_first;
  if (!inside) locate_moments(rule, state_fields(rule, chunk), state, first, unquantised, out);
  return out;
}

Located locate_gradient(const UpdateRule& of_all, const Chunk& chunk, const GroupPointers& groups, std::uint64_t first,
                        std::uint64_t n) {
  const auto rule = rule_of(of_all, chunk);
  const auto bytes = field_bytes(rule.type);
  Located out{
      .form = {.weights = kernels::Weights::fp32, .moments = moments_of(rule.state_format, chunk.unquantised > 0)},
      .span = {.grad = groups.grad == nullptr ? nullptr : groups.grad + first * bytes.grad,
               .n = n,
               .index = (std::uint64_t{chunk.block} << 40) | (chunk.index + first)}};
  locate_moments(rule, state_fields(rule, chunk), groups.state, first, first, out);
  return out;
}

optim::MatrixSpan matrix_of(const UpdateRule& rule, const Chunk& chunk, const GroupPointers& groups) {
  const auto own = rule_of(rule, chunk);
  const auto fields = state_fields(rule, chunk);
  optim::MatrixSpan out{.rows = chunk.rows,
                        .columns = chunk.columns,
                        .weights = own.type,
                        .weight = groups.weight,
                        .remainder = remainder_bytes(own) == 0 ? nullptr : groups.state,
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
  if (needs_scale_mean(chunk.form)) {
    const auto groups = kernels::scale_groups_at(encoding, chunk.values());
    return {{"weight", 0, scales, 1, chunk.values() / scales},
            {"weight_scale", scales, groups - scales, 1, kernels::kPackedBlock},
            {"weight_scale_scale", groups, kernels::encoded_bytes(encoding, chunk.values()) - groups,
             sizeof(kernels::ScaleGroup), kernels::group_values(encoding)}};
  }
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
  const auto remainder = remainder_bytes(rule);
  if (remainder > 0) add(traits(rule.type).remainder_name, 0, chunk.values(), remainder, 1);
  const auto& format = traits(rule.state_format);
  for (std::size_t m = 0; m < rule.moments(); ++m) {
    add(rule.optimizer->fields[m], fields.moments[m], chunk.gradient_elements, format.bytes, 1);
  }
  for (std::size_t m = 0; m < rule.moments() && format.is_scaled; ++m) {
    add(scale_name(rule.optimizer->fields[m]), fields.scales[m], chunk.gradient_elements / kernels::kQuantBlock,
        sizeof(float), kernels::kQuantBlock);
  }
  for (std::size_t m = 0; m < rule.moments() && format.is_scaled; ++m) {
    add(rule.optimizer->fields[m], fields.unquantised[m], chunk.unquantised, sizeof(float), 0);
  }
  add(chunk.reduced.by->auxiliary, fields.auxiliary, chunk.reduced.auxiliary_bytes() / sizeof(float), sizeof(float), 1);
  return out;
}

std::string scale_name(const char* field) {
  return std::string(field) + "_scale";
}

void check_format(const UpdateRule& rule) {
  if (rule.optimizer->keeps(rule.state_format)) return;
  std::string known;
  for (const auto format : rule.optimizer->formats) known += text(known.empty() ? "" : ", ", name_of(format));
  throw Error(ErrorCode::bad_input, text("state_format is ", name_of(rule.state_format), "; ", rule.optimizer->name,
                                         " keeps its state in: ", known));
}

ComputeType parse_compute_type(std::string_view name) {
  return parse("compute_dtype", name, kinds_of<ComputeType>(kernels::kElements));
}

ComputeType parse_weight_type(std::string_view name) {
  return parse("weight_dtype", name, kinds_of<ComputeType>(kernels::kElements));
}
StateFormat parse_format(std::string_view name) {
  return parse("state_format", name, kinds_of<StateFormat>(kernels::kMomentFormats));
}
Form parse_packed_form(std::string_view name) {
  return parse("the form of packed weights", name, kPackedForms);
}

BlockRole parse_role(std::string_view name) {
  return parse("the role of a block", name, kinds_of<BlockRole>(kRoles));
}

}  // namespace spillway::state
