// Several processes that train a toy, each with an engine of its own and a thread here; the network brings messages in
// an order that it draws.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "spillway/network/fake.h"
#include "tests/contract/directory.h"
#include "tests/contract/each_rank.h"
#include "tests/contract/fake_nodes.h"
#include "tests/contract/on_device.h"
#include "tests/contract/outcome.h"
#include "tests/contract/toy.h"
#include "tests/plan/models.h"

namespace spillway::test {

inline constexpr std::uint64_t kTokensOfOne = 6;  ///< of a micro-batch

/// One process's part of steps: what a micro-batch gives depends on its tokens and on weights alone.
class Rank {
 public:
  Rank(Engine& engine, const plan::Description& description) : engine_(engine), description_(description) {}

  void fill() {
    for (std::size_t t = 0; t < engine_.layout().tensors().size(); ++t) {
      std::vector<float> values(engine_.layout().tensors()[t].elements);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = noise(t * 7919 + i) * 0.1F;
      engine_.store_tensor(t, 0, values);
    }
  }

  std::vector<float> masters() {
    std::vector<float> out;
    for (std::size_t t = 0; t < engine_.layout().tensors().size(); ++t) {
      std::vector<float> values(engine_.layout().tensors()[t].elements);
      engine_.fetch_tensor(t, 0, values);
      out.insert(out.end(), values.begin(), values.end());
    }
    return out;
  }

  double step(std::uint64_t seed, std::size_t micro_batches, bool training = true) {
    const auto own = plan::VirtualRanks(description_.virtual_ranks, micro_batches)
                         .restrict_to(description_.world.rank, description_.world.size);
    first_ = own.position_of(own.first());
    end_ = own.position_of(own.end());
    const bool embeds = description_.blocks.front().role == state::BlockRole::embedding;
    const auto rows =
        static_cast<std::uint64_t>(embeds ? description_.blocks.front().tensors.front().shape.front() : 1);
    std::vector<std::int64_t> ids(embeds ? micro_batches * kTokensOfOne : 0);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int64_t>(mix(seed * 131 + i / 2) % rows % 90);
    engine_.begin_step({.ids = ids,
                        .counts = std::vector<std::uint64_t>(micro_batches, kTokensOfOne),
                        .training = training,
                        .update = std::nullopt});
    seed_ = seed;
    if (embeds) engine_.embedding_forward();
    first_forward_ = !embeds;
    while (const auto pass = engine_.next_pass()) {
      run(*pass);
      engine_.end_pass();
    }
    return engine_.end_step({.learning_rate = 1e-2, .weight_decay = 0.1, .max_grad_norm = 1.0}).grad_norm;
  }

 private:
  [[nodiscard]] bool fp32() const { return description_.computes() == state::ComputeType::fp32; }
  [[nodiscard]] Numbers see(std::byte* at) const { return {at, fp32()}; }
  [[nodiscard]] std::uint64_t each() const {
    return kTokensOfOne * description_.hidden_size;
  }  ///< values of a micro-batch

  float sum_of(std::byte* weights, std::uint64_t elements) const { return see(weights).mean_of(elements); }
  Numbers weights_of(std::byte* weights, const state::Tensor& it) const {
    const auto t = static_cast<std::size_t>(&it - engine_.layout().tensors().data());
    return {weights + engine_.tensor_offset(t) * (fp32() ? 4 : 2), fp32() || it.spec.form == state::Form::fp32};
  }
  float sum_of_tensors(std::byte* weights, const state::Block& block) const {
    float sum = 0;
    each_run_of_pieces(engine_, block, seed_, [&](const state::Tensor& it, std::uint64_t values) {
      sum += sum_of_pieces(weights_of(weights, it), values);
    });
    for (std::size_t t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
      const auto& it = engine_.layout().tensors()[t];
      if (it.spec.pieces > 0) continue;
      const auto w = weights_of(weights, it);
      for (std::uint64_t i = 0; i < it.elements; ++i) sum += w[i] * static_cast<float>(i % 5 + 1);
    }
    return sum / 1000;
  }

  void run(const BlockPass& pass) {
    const auto& block = engine_.layout().blocks()[pass.block];
    switch (pass.kind) {
      case plan::PassKind::forward:
        return forward(pass, block);
      case plan::PassKind::head_gradient:
        return head_gradient(pass, block);
      case plan::PassKind::backward:
        return backward(pass, block);
      case plan::PassKind::embedding_backward:
        return engine_.embedding_backward(pass.hidden_gradient);
      case plan::PassKind::head_loss:
      case plan::PassKind::embedding:
        return;
    }
  }

  void forward(const BlockPass& pass, const state::Block& block) {
    const auto in = see(pass.input), out = see(pass.output);
    const auto factor = 1 + sum_of_tensors(pass.weights, block);
    for (auto m = first_; m < end_; ++m) {
      const auto base = (m - first_) * each();
      for (std::uint64_t i = 0; first_forward_ && i < each(); ++i) in.set(base + i, 0.5F + noise(m * 97 + i));
      for (std::uint64_t i = 0; i < each(); ++i) {
        out.set(base + i, in[base + i] * factor + 0.01F * static_cast<float>(i % 3));
      }
    }
    first_forward_ = false;
  }

  void head_gradient(const BlockPass& pass, const state::Block& block) {
    const auto count = pass.rows * block.columns;
    const auto factor = sum_of(pass.weights, count);
    std::vector<float> memory(count);
    const auto to = see(reinterpret_cast<std::byte*>(memory.data())), in = see(pass.input), weight = see(pass.weights);
    for (auto m = first_; m < end_; ++m) {
      const auto base = (m - first_) * each();
      const auto pull = in[base + pass.rows % each()];
      for (std::size_t i = 0; i < count; ++i) to.set(i, weight[i] * 0.3F + factor + pull + noise(m * 31 + i));
      if (block.trainable_chunks > 0) engine_.head_gradient(reinterpret_cast<std::byte*>(memory.data()), m);
      for (std::uint64_t i = 0; i < each(); ++i) {
        auto& sum = pass.accumulator[base + i];
        sum = (pass.slice == block.chunks - 1 ? 0 : sum) + factor * 1e-3F + pull * 1e-2F;
      }
    }
  }

  void backward(const BlockPass& pass, const state::Block& block) {
    const auto hidden = see(pass.hidden_gradient), in = see(pass.input);
    const auto n = (end_ - first_) * each();
    if (pass.accumulator != nullptr) {
      for (std::uint64_t i = 0; i < n; ++i) hidden.set(i, pass.accumulator[i]);
    } else if (pass.output != nullptr) {
      std::memcpy(pass.hidden_gradient, pass.output, n * (fp32() ? 4 : 2));
    }
    const auto factor = sum_of_tensors(pass.weights, block);
    for (std::size_t t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
      const auto& it = engine_.layout().tensors()[t];
      if (!is_trainable(it.spec.training)) continue;
      if (it.reduced.any()) {
        inside(pass, t, factor);
        continue;
      }
      std::vector<float> memory(it.elements);
      const Numbers to{reinterpret_cast<std::byte*>(memory.data()), fp32() || it.spec.form == state::Form::fp32};
      for (auto m = first_; m < end_; ++m) {
        if ((m + t) % 5 == 4) continue;  // an expert that none of its tokens took
        const auto base = (m - first_) * each();
        const auto pull = hidden[base + t % each()] + in[base + t % 7];
        for (std::size_t i = 0; i < it.elements; ++i) to.set(i, factor + pull + noise(i + m * 13) * 0.1F);
        engine_.gradient(t, reinterpret_cast<std::byte*>(memory.data()), m);
      }
    }
    for (std::uint64_t i = 0; i < n; ++i) hidden.set(i, hidden[i] * 0.9F + in[i] * 1e-3F + factor);
  }

  /// A matrix that is trained in a subspace: a few tokens of each micro-batch.
  void inside(const BlockPass& pass, std::size_t t, float factor) {
    constexpr std::size_t kTokens = 3;
    const auto hidden = see(pass.hidden_gradient), in = see(pass.input);
    const auto it = engine_.layout().tensors()[t].reduced;
    for (auto m = first_; m < end_; ++m) {
      if ((m + t) % 5 == 4) continue;  // as above
      const auto pull = hidden[(m - first_) * each() + t % each()] + in[(m - first_) * each() + t % 7];
      std::vector<std::uint16_t> x(kTokens * it.columns), y(kTokens * it.rows);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = to_bf16(factor + noise(i * 3 + m));
      for (std::size_t i = 0; i < y.size(); ++i) y[i] = to_bf16(pull * 0.1F + noise(i * 7 + m + t) * 0.3F);
      toy_.inside(t, x, y, m);
    }
  }

  Engine& engine_;
  const plan::Description& description_;
  Toy toy_{engine_, description_, 1};
  std::uint64_t first_ = 0, end_ = 0;
  std::uint64_t seed_ = 0;  ///< of the step
  bool first_forward_ = true;
};

struct World {
  std::size_t size = 1;
  plan::PlacementShares placement = {};
  bool paths = false;
  bool evaluates = false;
  bool own_weights = false;                                         ///< each keeps in memory what it owns of them alone
  std::size_t local = 1;                                            ///< processes of each machine
  std::optional<plan::DeviceTier> device = {};                      ///< of each, with random delays
  std::vector<double> nodes = {};                                   ///< update rates of the NUMA nodes of each
  bool file = false;                                                ///< the last one is a file
  std::function<void(const Engine& engine, bool after)> tell = {};  ///< called before and after all steps
};

/// The description for one rank, whose largest share of a step is the same for all.
inline plan::Description for_rank(plan::Description description, std::size_t rank, std::size_t size,
                                  std::size_t local = 1) {
  description.world = {.size = size, .rank = rank, .local = local};
  std::uint64_t most = 0;
  for (std::size_t r = 0; r < size; ++r) {
    for (auto m = description.micro_batches; m > 0; --m) {
      const auto own = plan::VirtualRanks(description.virtual_ranks, m).restrict_to(r, size);
      most = std::max(most, own.position_of(own.end()) - own.position_of(own.first()));
    }
  }
  description.tokens = most * kTokensOfOne;
  description.step_tokens = description.micro_batches * kTokensOfOne;
  return description;
}

/// Port of a fake network that the engine may keep.
inline std::shared_ptr<network::Port> port_of(network::FakeNetwork& network, std::size_t rank) {
  return {std::shared_ptr<void>{}, &network.port(rank)};
}

inline Outcome steps_of(Engine& engine, const plan::Description& description, const World& world) {
  engine.start();
  Rank rank(engine, description);
  rank.fill();
  if (world.tell) world.tell(engine, false);
  Outcome out;
  for (std::uint64_t s = 0; s < 4; ++s) {
    out.norms.push_back(rank.step(s, s == 2 ? 1 + description.micro_batches / 3 : description.micro_batches));
    if (world.evaluates && s % 2 == 0) rank.step(100 + s, description.micro_batches, false);
    if (world.evaluates && s == 1) engine.flush();
  }
  if (world.tell) world.tell(engine, true);
  out.masters = rank.masters();
  return out;
}

/// `lost`: tells the others, before the engine waits for them.
inline Outcome train_rank(const plan::Description& description, Settings settings, const World& world,
                          const std::function<void()>& lost) {
  Engine engine(description, std::move(settings));
  try {
    return steps_of(engine, description, world);
  } catch (...) {
    lost();
    throw;
  }
}

/// Gradients and boundary activations lie on the last of them.
inline void use_nodes(Settings& settings, const World& world, const std::filesystem::path& directory) {
  use_fake_nodes(settings, world.nodes);
  const auto last = world.nodes.size() - 1;
  settings.budget.placement.grad_on = settings.budget.placement.activation_on = static_cast<std::uint16_t>(last);
  if (!world.file) return;
  settings.budget.nodes[last] = {.id = 0, .capacity = 256 * MiB, .kind = plan::NodeKind::file};
  settings.nodes[last].backing = memory::in_file(directory);
}

/// What each rank has in the end.
inline std::vector<Outcome> train(const plan::Description& whole, const World& world, std::uint32_t seed) {
  network::FakeNetwork network(world.size, seed);
  std::vector<Directory> directories(world.size);
  std::vector<Outcome> out(world.size);
  each_rank(network, world.size, [&](std::size_t rank) {
    auto settings = everything_in_dram();
    settings.budget.placement = world.placement;
    settings.budget.durability = plan::Durability::none;
    settings.budget.own_weights = world.own_weights;
    settings.piece_period = 2;
    if (!world.nodes.empty()) use_nodes(settings, world, directories[rank].path());
    if (world.device) {
      settings.budget.device = world.device;
      delay_copies(settings, seed + rank);
    }
    if (world.paths) {
      settings.storage.places.push_back({directories[rank].path()});
      settings.budget.paths.push_back({.name = "path:0", .capacity = 1 * GiB});
    }
    if (world.size > 1) settings.network = port_of(network, rank);
    out[rank] = train_rank(for_rank(whole, rank, world.size, world.local), std::move(settings), world,
                           [&] { network.lose(rank); });
  });
  return out;
}

inline plan::test::Shape shape_of(const plan::test::Shape& shape) {
  auto out = shape;
  out.virtual_ranks = std::max<std::uint64_t>(4, shape.virtual_ranks);
  out.chunk_elements = 2048;
  return out;
}

}  // namespace spillway::test
