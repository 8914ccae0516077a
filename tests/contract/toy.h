// A toy "network" for engine tests: arithmetic that touches every byte a pass may touch, so that a stale, late or
// misplaced byte changes the result. No model of anything.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "spillway/engine.h"

namespace spillway::test {

inline float to_float(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}
inline std::uint16_t to_bf16(float value) {
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + 0x8000U) >> 16);
}

/// A number of either type that passes compute in.
inline float number(std::uint16_t bits) {
  return to_float(bits);
}
inline float number(float value) {
  return value;
}
inline void put(std::uint16_t& to, float value) {
  to = to_bf16(value);
}
inline void put(float& to, float value) {
  to = value;
}

/// Numbers in memory, of the one or the other.
struct Numbers {
  std::byte* at = nullptr;
  bool fp32 = false;

  [[nodiscard]] float operator[](std::uint64_t i) const {
    return fp32 ? reinterpret_cast<const float*>(at)[i] : to_float(reinterpret_cast<const std::uint16_t*>(at)[i]);
  }
  /// Of the first `elements`, each so many times as its place says.
  [[nodiscard]] float mean_of(std::uint64_t elements) const {
    float sum = 0;
    for (std::uint64_t i = 0; i < elements; ++i) sum += (*this)[i] * static_cast<float>(i % 5 + 1);
    return sum / static_cast<float>(elements);
  }
  void set(std::uint64_t i, float value) const {
    if (fp32) {
      reinterpret_cast<float*>(at)[i] = value;
    } else {
      reinterpret_cast<std::uint16_t*>(at)[i] = to_bf16(value);
    }
  }
};

inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
/// From -1/2 to 1/2.
inline float noise(std::uint64_t x) {
  return static_cast<float>(mix(x + 1) >> 40) / 16777216.0F - 0.5F;
}

/// Runs what it is given, at once or later, in order.
using Compute = std::function<void(std::function<void()>)>;

/// Lets the caller's work of an engine with these settings run in a stream of the simulated device, behind the caller:
/// the function that gives it to the stream is in what is returned as soon as the engine has started.
inline std::shared_ptr<Compute> queue_compute(Settings& settings) {
  auto out = std::make_shared<Compute>();
  settings.device.queue = [out](device::Simulated& device, device::Stream stream) {
    *out = [&device, stream](std::function<void()> work) { device.call(stream, std::move(work)); };
  };
  return out;
}

/// True if a step takes the piece: of tensors whose pieces are asked for about half, others in each step.
inline bool takes_piece(const state::Tensor& it, std::size_t tensor, std::uint64_t seed, std::uint64_t piece) {
  return !it.spec.is_asked() || mix(seed * 31 + tensor * 7 + piece) % 2 == 0;
}

/// Converts the pieces of a block's tensors that the step `seed` takes, a few at a time, and calls body(tensor, values)
/// for each run of them.
template <class Body>
void each_run_of_pieces(Engine& engine, const state::Block& block, std::uint64_t seed, const Body& body) {
  for (std::size_t t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
    const auto& it = engine.layout().tensors()[t];
    const auto takes = [&](std::uint64_t i) { return takes_piece(it, t, seed, i); };
    for (std::uint64_t i = 1; i < it.spec.pieces; i += 2) {
      if (takes(i)) engine.ask_pieces(t, i, 1);
    }
    for (std::uint64_t i = 0, count = 1; i < it.spec.pieces; i += count) {
      count = 1;
      if (!takes(i)) continue;
      while (count < 1 + i % 3 && i + count < it.spec.pieces && takes(i + count)) ++count;
      engine.convert_pieces(t, i, count);
      body(it, count * it.piece());
    }
  }
}
inline float sum_of_pieces(const Numbers& weight, std::uint64_t values) {
  float sum = 0;
  for (std::uint64_t v = 0; v < values; v += 7) sum += weight[v] * static_cast<float>(v % 5) * 1e-3F;
  return sum;
}

class Toy {
 public:
  Toy(Engine& engine, const plan::Description& description, std::size_t micro_batches)
      : engine_(engine), description_(description), micro_batches_(micro_batches) {}

  void fill() {
    const auto& layout = engine_.layout();
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      std::vector<float> values(layout.tensors()[t].elements);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = noise(t * 7919 + i) * 0.1F;
      engine_.store_tensor(t, 0, values);
    }
  }

  std::vector<float> masters() {
    std::vector<float> out;
    const auto& layout = engine_.layout();
    for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
      std::vector<float> values(layout.tensors()[t].elements);
      engine_.fetch_tensor(t, 0, values);
      out.insert(out.end(), values.begin(), values.end());
    }
    return out;
  }

  /// From the next step on some gradients are not finite, or all are again.
  void poison(bool on) { poisoned_ = on; }

  StepResult step(std::uint64_t seed, bool training = true) {
    run_passes(seed, training);
    return engine_.end_step(update);
  }

  /// The passes of a training step that ends in end_step() or abandon_step(), and the digests of all of it.
  std::vector<StepDigest> compute_step(std::uint64_t seed, bool trial) {
    run_passes(seed, true, true, trial);
    norm_ = engine_.norm().sum;
    return engine_.take_digests();
  }
  /// Of what compute_step() has computed last.
  [[nodiscard]] double norm() const { return norm_; }

  /// Ids of a step; all of them come twice at least.
  [[nodiscard]] std::vector<std::int64_t> token_ids(std::uint64_t seed) const {
    const auto& table = description_.blocks.front();
    const auto rows = table.role == state::BlockRole::embedding ? table.tensors.front().shape.front() : 1;
    std::vector<std::int64_t> out(description_.tokens);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(mix(seed * 131 + i / 2) % rows);
    return out;
  }

  /// All passes of a step.
  void run_passes(std::uint64_t seed, bool training, bool digests = false, bool trial = false) {
    const auto tokens = description_.tokens;
    seed_ = seed;
    const bool embeds = description_.blocks.front().role == state::BlockRole::embedding;
    const auto ids = token_ids(seed);
    std::vector<std::uint64_t> counts(micro_batches_, tokens / micro_batches_);
    counts.back() += tokens % micro_batches_;
    engine_.begin_step({.ids = embeds ? std::span<const std::int64_t>(ids) : std::span<const std::int64_t>(),
                        .counts = counts,
                        .training = training,
                        .update = expected,
                        .digests = digests,
                        .trial = trial});
    if (embeds) engine_.embedding_forward();
    first_forward_ = !embeds;
    while (const auto pass = engine_.next_pass()) {
      look(*pass);
      run(*pass);
      engine_.end_pass();
    }
  }

  /// Where the arithmetic of passes is done, in the order of these calls: at once, or behind the caller.
  std::function<void(std::function<void()>)> compute = [](const std::function<void()>& work) { work(); };

  /// Where gradients are made for the engine: so many numbers of bf16.
  std::function<std::shared_ptr<std::uint16_t[]>(std::size_t)> memory = [](std::size_t count) {
    return std::make_shared<std::uint16_t[]>(count);
  };

  /// Sees each pass before it is computed.
  std::function<void(const BlockPass&)> look = [](const BlockPass&) {};

  StepUpdate update{.learning_rate = 1e-2, .weight_decay = 0.1, .max_grad_norm = 1.0};  ///< that steps end with
  std::optional<StepUpdate> expected = std::nullopt;                                    ///< that they begin with

 private:
  [[nodiscard]] bool fp32() const { return description_.computes() == state::ComputeType::fp32; }
  /// What lies where a pass computes.
  [[nodiscard]] Numbers see(std::byte* at) const { return {at, fp32()}; }

  float sum_of(std::byte* weights, std::uint64_t elements) const { return see(weights).mean_of(elements); }

  /// Of all weights of a layer; where some are kept in fp32, tensor by tensor.
  float sum_of(std::byte* weights, const state::Block& block) const {
    const auto* first = &engine_.layout().tensors()[block.first_tensor];
    const std::span<const state::Tensor> tensors(first, block.tensors);
    const auto is_apart = [](const state::Tensor& it) { return it.spec.form != state::Form::as_run || it.spec.apart; };
    if (std::ranges::none_of(tensors, is_apart)) {
      return sum_of(weights, used(block));
    }
    float sum = 0;
    for (const auto& it : tensors) {
      if (it.spec.pieces > 0) continue;
      const auto weight = weights_of(weights, it);
      for (std::uint64_t i = 0; i < it.elements; ++i) {
        sum += weight[i] * static_cast<float>(i % 5 + 1) / static_cast<float>(it.elements);
      }
    }
    return sum / static_cast<float>(block.tensors);
  }

  [[nodiscard]] Numbers weights_of(std::byte* weights, const state::Tensor& it) const {
    const auto number = static_cast<std::size_t>(&it - engine_.layout().tensors().data());
    return {weights + engine_.tensor_offset(number) * (fp32() ? 4 : 2), fp32() || it.spec.form == state::Form::fp32};
  }

  /// Of weights that are converted in pieces, when what has been asked of the stream so far has run.
  std::shared_ptr<float> sum_pieces(const BlockPass& pass, const state::Block& block) {
    const auto sum = std::make_shared<float>(0.0F);
    each_run_of_pieces(engine_, block, seed_, [&](const state::Tensor& it, std::uint64_t values) {
      compute([=, weight = weights_of(pass.weights, it)] { *sum += sum_of_pieces(weight, values); });
    });
    return sum;
  }

  void run(const BlockPass& pass) {
    const auto n = description_.tokens * description_.hidden_size;
    const auto& block = engine_.layout().blocks()[pass.block];
    switch (pass.kind) {
      case plan::PassKind::forward:
        compute([=, this, &block, first = first_forward_, pieces = sum_pieces(pass, block)] {
          forward(pass, 1 + sum_of(pass.weights, block) + *pieces, n, first);
        });
        first_forward_ = false;
        break;
      case plan::PassKind::head_loss:
        compute([=, this, &block] { carry_ += sum_of(pass.weights, pass.rows * block.columns); });
        break;
      case plan::PassKind::head_gradient:
        head_gradient(pass, block, n);
        break;
      case plan::PassKind::backward:
        backward(pass, block, n);
        break;
      case plan::PassKind::embedding_backward:
        engine_.embedding_backward(pass.hidden_gradient);
        break;
      case plan::PassKind::embedding:
        break;
    }
  }

  void forward(const BlockPass& pass, float factor, std::uint64_t n, bool first) const {
    const auto in = see(pass.input), out = see(pass.output);
    for (std::uint64_t i = 0; first && i < n; ++i) in.set(i, 0.5F);
    for (std::uint64_t i = 0; i < n; ++i) out.set(i, in[i] * factor + 0.01F * static_cast<float>(i % 3));
    for (auto* kept : {reinterpret_cast<float*>(pass.spilled), reinterpret_cast<float*>(pass.features)}) {
      for (std::uint64_t i = 0; kept != nullptr && i < n; ++i) kept[i] = in[i];
    }
  }

  void head_gradient(const BlockPass& pass, const state::Block& block, std::uint64_t n) {
    const auto factor = std::make_shared<float>();
    compute([=, this, &block] {
      *factor = sum_of(pass.weights, pass.rows * block.columns) + see(pass.input)[pass.rows % n];
    });
    const auto count = pass.rows * block.columns;
    const auto gradient = memory(2 * count);  // room for either type
    for (std::size_t m = 0; m < micro_batches_; ++m) {
      compute([=, to = see(reinterpret_cast<std::byte*>(gradient.get())), weight = see(pass.weights)] {
        for (std::size_t i = 0; i < count; ++i) to.set(i, weight[i] * 0.3F + *factor + noise(m * 31 + i));
      });
      if (block.trainable_chunks > 0) engine_.head_gradient(reinterpret_cast<std::byte*>(gradient.get()), m);
    }
    compute([=, gradient = gradient, last = pass.slice == block.chunks - 1] {  // which stays until here
      for (std::uint64_t i = 0; i < n; ++i) {
        pass.accumulator[i] = (last ? 0 : pass.accumulator[i]) + *factor * 1e-3F;
      }
    });
  }

  void backward(const BlockPass& pass, const state::Block& block, std::uint64_t n) {
    const auto factor = std::make_shared<float>();
    compute([=, this, &block, pieces = sum_pieces(pass, block)] {
      const auto hidden = see(pass.hidden_gradient);
      if (pass.accumulator != nullptr) {
        for (std::uint64_t i = 0; i < n; ++i) hidden.set(i, pass.accumulator[i]);
      } else if (pass.output != nullptr) {
        std::copy(pass.output, pass.output + n * (fp32() ? 4 : 2), pass.hidden_gradient);
      }
      *factor = sum_of(pass.weights, block) + *pieces;
    });
    for (std::size_t t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
      const auto& it = engine_.layout().tensors()[t];
      if (it.reduced.any()) {
        for (std::size_t m = 0; m < micro_batches_; ++m) {
          fp32() ? inside<float>(pass, t, factor, m) : inside<std::uint16_t>(pass, t, factor, m);
        }
      } else if (is_trainable(it.spec.training)) {
        gradients(pass, t, factor);
      }
    }
    compute([=, hidden = see(pass.hidden_gradient), in = see(pass.input)] {
      const auto* kept = reinterpret_cast<const float*>(pass.spilled != nullptr ? pass.spilled : pass.features);
      for (std::uint64_t i = 0; i < n; ++i) {
        const auto from = kept != nullptr ? kept[i] : in[i];
        hidden.set(i, hidden[i] * 0.9F + from * 1e-3F + *factor);
      }
    });
  }

  std::uint64_t used(const state::Block& block) const {
    std::uint64_t end = 0;
    for (std::size_t t = block.first_tensor; t < block.first_tensor + block.tensors; ++t) {
      const auto& it = engine_.layout().tensors()[t];
      end = std::max(end, it.first + it.elements);
    }
    return end;
  }

  /// A matrix that is trained in a subspace: a few tokens' inputs and output gradients.
  template <class T>
  void inside(const BlockPass& pass, std::size_t tensor, const std::shared_ptr<float>& factor, std::size_t m) {
    constexpr std::size_t kTokens = 5;
    const auto& it = engine_.layout().tensors()[tensor];
    const auto x = shared<T>(kTokens * it.reduced.columns), y = shared<T>(kTokens * it.reduced.rows);
    compute([=, this, &it, poisoned = poisoned_] {
      const auto pull = see(pass.hidden_gradient)[m] + see(pass.input)[tensor % 7];
      const auto weight = weights_of(pass.weights, it);
      for (std::size_t i = 0; i < x->size(); ++i) {
        put((*x)[i], weight[i % it.elements] * 0.2F + *factor + noise(i * 3 + m));
      }
      for (std::size_t i = 0; i < y->size(); ++i) {
        put((*y)[i], pull * 0.1F + noise(i * 7 + m + tensor) * 0.3F);
      }
      if (poisoned) put(y->back(), std::numeric_limits<float>::infinity());
    });
    hand_over(tensor, x, y, m);
  }

  template <class T>
  using Shared = std::shared_ptr<std::vector<T>>;
  template <class T>
  static Shared<T> shared(std::size_t count) {
    return std::make_shared<std::vector<T>>(count);
  }

  /// A micro-batch's tokens x [tokens, columns] and y [tokens, rows], as a layer hands them over. Returns their S.
  template <class T>
  Shared<T> hand_over(std::size_t tensor, const Shared<T>& x, const Shared<T>& y, std::size_t m) {
    const auto it = engine_.layout().tensors()[tensor].reduced;
    const auto tokens = x->size() / it.columns;
    if (engine_.wants_whole_gradient(tensor, m)) {
      const auto whole = shared<float>(it.rows * it.columns);
      compute([=] { std::ranges::copy(product(*y, it.rows, *x, it.columns, tokens), whole->begin()); });
      engine_.whole_gradient(tensor, *whole);
      compute([whole] {});  // which stays until here, and so do the others
    }
    const auto inner = shared<T>(it.rank * tokens), outer = shared<T>(it.rank * tokens);
    const auto s = shared<T>(it.rank * it.rank);
    engine_.compress(tensor, 0, bytes(*y), it.rows, tokens, bytes(*outer));
    engine_.compress(tensor, 1, bytes(*x), it.columns, tokens, bytes(*inner));
    compute([=] { multiply(*outer, *inner, it.rank, tokens, *s); });
    engine_.gradient(tensor, bytes(*s), m);
    std::vector<float> signs(it.columns);
    engine_.signs(tensor, signs);
    const auto missed = shared<float>(it.rows);
    compute([=] { std::ranges::copy(seen(*y, it.rows, *x, signs, tokens), missed->begin()); });
    engine_.sample(tensor, *missed, m);
    compute(
        [=] { static_cast<void>(inner), static_cast<void>(outer), static_cast<void>(s), static_cast<void>(missed); });
    return s;
  }

  /// outer [d, tokens] times inner [d, tokens] turned.
  template <class T>
  static void multiply(const std::vector<T>& outer, const std::vector<T>& inner, std::size_t d, std::size_t tokens,
                       std::vector<T>& out) {
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t k = 0; k < d; ++k) {
        float sum = 0;
        for (std::size_t t = 0; t < tokens; ++t) {
          sum += number(outer[i * tokens + t]) * number(inner[k * tokens + t]);
        }
        put(out[i * d + k], sum);
      }
    }
  }

 public:
  /// The same, where work is done at once.
  std::vector<std::uint16_t> inside(std::size_t tensor, const std::vector<std::uint16_t>& x,
                                    const std::vector<std::uint16_t>& y, std::size_t m) {
    using Halves = std::vector<std::uint16_t>;
    return *hand_over(tensor, std::make_shared<Halves>(x), std::make_shared<Halves>(y), m);
  }

  /// y' x in fp32, [rows, columns].
  template <class T>
  static std::vector<float> product(const std::vector<T>& y, std::size_t rows, const std::vector<T>& x,
                                    std::size_t columns, std::size_t tokens) {
    std::vector<float> out(rows * columns);
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t k = 0; k < columns; ++k) {
          out[i * columns + k] += number(y[t * rows + i]) * number(x[t * columns + k]);
        }
      }
    }
    return out;
  }

 private:
  template <class T>
  static std::vector<float> seen(const std::vector<T>& y, std::size_t rows, const std::vector<T>& x,
                                 const std::vector<float>& z, std::size_t tokens) {
    std::vector<float> out(rows);
    for (std::size_t t = 0; t < tokens; ++t) {
      float sum = 0;
      for (std::size_t k = 0; k < z.size(); ++k) sum += number(x[t * z.size() + k]) * z[k];
      for (std::size_t i = 0; i < rows; ++i) out[i] += number(y[t * rows + i]) * sum;
    }
    return out;
  }
  template <class T>
  static std::byte* bytes(std::vector<T>& values) {
    return reinterpret_cast<std::byte*>(values.data());
  }

  void gradients(const BlockPass& pass, std::size_t tensor, const std::shared_ptr<float>& factor) {
    const auto& it = engine_.layout().tensors()[tensor];
    const auto gradient = memory(2 * it.elements);  // room for either type
    for (std::size_t m = 0; m < micro_batches_; ++m) {
      compute([=, this, &it, poisoned = poisoned_, seed = seed_] {
        const auto pull = see(pass.hidden_gradient)[m] + see(pass.input)[tensor % 7];
        const auto weight = weights_of(pass.weights, it);
        const Numbers to{reinterpret_cast<std::byte*>(gradient.get()), fp32() || it.spec.form == state::Form::fp32};
        for (std::size_t i = 0; i < it.elements; ++i) {
          const bool has_pieces = it.spec.pieces > 0;  // its weights are not there
          const auto own = has_pieces ? 0 : weight[i] * 0.2F;
          const bool takes = !has_pieces || takes_piece(it, tensor, seed, i / it.piece());
          const auto value = takes ? own + *factor + pull + noise(i + m) * 0.1F : 0;
          to.set(i, poisoned && i + 1 == it.elements ? std::numeric_limits<float>::infinity() : value);
        }
      });
      engine_.gradient(tensor, reinterpret_cast<std::byte*>(gradient.get()), m);
    }
    compute([gradient] {});  // which stays until here
  }

  Engine& engine_;
  const plan::Description& description_;
  const std::size_t micro_batches_;
  std::uint64_t seed_ = 0;  ///< of the step
  bool first_forward_ = true;
  bool poisoned_ = false;
  float carry_ = 0;
  double norm_ = 0;
};

}  // namespace spillway::test
