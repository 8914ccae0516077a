// A matrix that is trained in a subspace, with what its update works on: for tests of the parts that do it.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "spillway/state/rule.h"
#include "spillway/subspace/update.h"
#include "tests/plan/models.h"

namespace spillway::subspace::test {

/// The first layer's `up`, [96, 64] by [32, 32].
struct SubspaceCase {
  /// The groups of its chunk, each in memory of its own.
  struct Groups {
    std::vector<std::byte> weight, state, grad;
    [[nodiscard]] state::GroupPointers at() { return {weight.data(), state.data(), grad.data()}; }
    friend bool operator==(const Groups&, const Groups&) = default;
  };

  explicit SubspaceCase(state::StateFormat format = state::StateFormat::exact, bool published = false)
      : description(plan::test::describe({.layers = 1,
                                          .embedding = false,
                                          .head = false,
                                          .tied = false,
                                          .format = format,
                                          .subspace = "up",
                                          .published = published})) {
    while (!layout.tensors()[tensor].reduced.any()) ++tensor;
    while (!layout.chunks()[chunk].reduced.any()) ++chunk;
  }

  [[nodiscard]] const optim::Reduced& space() const { return layout.tensors()[tensor].reduced; }
  [[nodiscard]] const state::Chunk& its_chunk() const { return layout.chunks()[chunk]; }
  [[nodiscard]] state::UpdateRule rule() const { return description.rule(); }

  /// As it lies in a state group, of random values.
  [[nodiscard]] std::vector<std::byte> projectors(std::uint64_t seed, const optim::RefitRecord& record) const {
    std::vector<std::byte> out(optim::projector_fields(space()).bytes);
    std::memcpy(out.data(), &record, sizeof(record));
    const auto shape = shape_of(space());
    put_pair(space(), {Projector::random(shape.p, seed, 0, 0, 0), Projector::random(shape.q, seed, 0, 0, 1)},
             out.data());
    return out;
  }

  /// Weights, moments and a gradient above zero; `ours` lies in the state, `given` with the gradient.
  [[nodiscard]] Groups groups(const std::vector<std::byte>& ours, const std::vector<std::byte>& given) const {
    Groups out{std::vector<std::byte>(weight_bytes(rule(), its_chunk())),
               std::vector<std::byte>(state_bytes(rule(), its_chunk())),
               std::vector<std::byte>(grad_bytes(rule(), its_chunk()))};
    std::mt19937 random(5);
    for (auto* group : {&out.weight, &out.state, &out.grad}) {
      for (std::size_t i = 0; i + 2 <= group->size(); i += 2) {  // numbers of either width
        const auto value = static_cast<std::uint16_t>(0x3c00 + random() % 0x200);
        std::memcpy(group->data() + i, &value, 2);
      }
    }
    for (auto* scales : inside(out).scales) {
      if (scales != nullptr) std::fill_n(scales, space().elements() / kernels::kQuantBlock, 0x1p-6F);
    }
    std::memcpy(out.state.data() + state_fields(rule(), its_chunk()).auxiliary, ours.data(), ours.size());
    std::memcpy(out.grad.data() + gradient_value_bytes(rule(), its_chunk()), given.data(), given.size());
    return out;
  }

  /// The pair that lies in the state.
  [[nodiscard]] std::vector<std::byte> adopted(const Groups& groups) const {
    const auto* at = groups.state.data() + state_fields(rule(), its_chunk()).auxiliary;
    return {at, at + optim::projector_fields(space()).bytes};
  }
  /// Gradient and moments of S.
  [[nodiscard]] kernels::UpdateSpan inside(Groups& groups) const {
    return locate_gradient(rule(), its_chunk(), groups.at(), 0, space().elements()).span;
  }
  /// A moment of S that is kept in fp32.
  [[nodiscard]] std::vector<float> moment(Groups& groups, std::size_t which) const {
    std::vector<float> out(space().elements());
    std::memcpy(out.data(), inside(groups).moments[which], out.size() * sizeof(float));
    return out;
  }

  const plan::Description description;
  const state::Layout layout = description.layout();
  std::size_t tensor = 0, chunk = 0;
};

}  // namespace spillway::subspace::test
