#include "spillway/execute/store.h"

#include "spillway/base/error.h"

namespace spillway::execute {
namespace {

constexpr const char* kFieldNames[] = {"weights", "residual and moments", "gradient", "activation"};

std::size_t pieces_of(Bytes bytes) {
  return ceil_div(bytes, storage::kExtentAlignment);
}

std::string name_of(const state::Layout& layout, Field field, std::size_t chunk) {
  const auto& block = layout.blocks()[layout.chunks()[chunk].block];
  const auto& spans = layout.spans(chunk);
  const auto tensors = spans.empty()       ? block.name
                       : spans.size() == 1 ? layout.tensors()[spans.front().tensor].spec.name
                                           : text(layout.tensors()[spans.front().tensor].spec.name, " to ",
                                                  layout.tensors()[spans.back().tensor].spec.name);
  return text(kFieldNames[static_cast<std::size_t>(field)], " of ", tensors, " (chunk ", chunk, ")");
}

}  // namespace

Store::Store(const plan::Plan& plan, const plan::Description& description, const state::Layout& layout,
             storage::Pool& pool)
    : pool_(pool) {
  const auto bytes = state::field_bytes(description.type);
  const auto reserve = [&](Field field, std::size_t subject, Bytes size, std::string name) {
    objects_[static_cast<std::size_t>(field)][subject] = {
        .places = std::vector<storage::Place>(pieces_of(size)), .written = false, .name = std::move(name)};
  };
  for (auto& field : objects_) field.resize(layout.chunks().size());
  for (std::size_t c = 0; c < layout.chunks().size(); ++c) {
    const auto elements = layout.chunks()[c].elements;
    const auto add = [&](Field field, Bytes size) { reserve(field, c, size, name_of(layout, field, c)); };
    if (!plan.residency.weight[c]) add(Field::weight, elements * bytes.weight);
    if (!plan.residency.state[c]) add(Field::state, elements * bytes.state);
    if (!plan.residency.grad[c] && plan::has_dense_grad(description, layout, static_cast<plan::Index>(c))) {
      add(Field::grad, elements * bytes.grad);
    }
  }
  const auto& borders = plan.residency.activation;
  objects_[static_cast<std::size_t>(Field::activation)].resize(borders.size());
  const auto border = round_up(description.tokens * description.hidden * bytes.grad, storage::kTransferAlignment);
  for (std::size_t i = 0; i < borders.size(); ++i) {
    if (!borders[i] && border > 0) reserve(Field::activation, i, border, text("input of layer ", i));
  }
}

storage::Pool::Request Store::request(const Transfer& transfer) {
  auto& object = objects_[static_cast<std::size_t>(transfer.field)].at(transfer.subject);
  if (object.places.size() != pieces_of(transfer.bytes)) {
    throw Error(ErrorCode::internal,
                text(transfer.bytes, " bytes of ", object.name, ", which has ", object.places.size(), " pieces"));
  }
  if (transfer.direction == storage::Direction::write) {
    if (object.written) pool_.release(object.places);
    object.written = true;
  } else if (!object.written) {
    throw Error(ErrorCode::internal, text(object.name, " is read before it was written"));
  }
  return {.direction = transfer.direction,
          .memory = transfer.memory,
          .bytes = transfer.bytes,
          .places = object.places,
          .deadline = transfer.deadline,
          .done = transfer.done,
          .context = transfer.context,
          .token = transfer.token,
          .what = object.name};
}

void Store::start(const Transfer& transfer) {
  pool_.start(request(transfer));
}

void Store::run(const Transfer& transfer) {
  pool_.run(request(transfer));
}

}  // namespace spillway::execute
