// Matrices that are trained in subspaces: against dense arithmetic in double, and bit by bit wherever their bytes lie.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "spillway/subspace/transfer.h"
#include "tests/contract/directory.h"
#include "tests/contract/durable_run.h"
#include "tests/contract/lives.h"
#include "tests/contract/outcome.h"
#include "tests/nightly.h"
#include "tests/subspace/dense.h"

namespace spillway {
namespace {

using plan::Durability;
using plan::test::describe;
using plan::test::Shape;
using subspace::testing::Dense;
using test::Directory;
using test::DurableRun;
using test::Toy;

// ---- the mathematics

/// A matrix alone, whose tokens are given step by step, beside the same in double.
class Reference {
 public:
  explicit Reference(const Shape& shape)
      : description_(describe(shape)), engine_(description_, everything_in_dram()), toy_(engine_, description_, 1) {
    engine_.start();
    toy_.fill();
    tensor_ = 0;  // layers.0.up
    const auto& it = engine_.layout().tensors()[tensor_];
    space_ = it.reduced;
    weight_ = Dense(space_.rows, space_.columns, std::span<const float>(fetch()));
  }

  std::vector<float> fetch() {
    std::vector<float> out(engine_.layout().tensors()[tensor_].elements);
    engine_.fetch_tensor(tensor_, 0, out);
    return out;
  }

  StepResult step(std::uint64_t number, const StepUpdate& update) {
    constexpr std::size_t kTokens = 12;
    std::mt19937 random(static_cast<unsigned>(number));
    std::normal_distribution<float> normal(0, 0.3F);
    std::vector<std::uint16_t> s, x(kTokens * space_.columns), y(kTokens * space_.rows);
    for (auto& it : x) it = test::to_bf16(normal(random));
    for (auto& it : y) it = test::to_bf16(normal(random));
    engine_.begin_step({.counts = {description_.tokens}});
    while (const auto pass = engine_.next_pass()) {
      if (pass->kind == plan::PassKind::backward && pass->block == 0) {
        refitted_ = engine_.wants_whole_gradient(tensor_, 0);
        s = toy_.inside(tensor_, x, y, 0);
      }
      engine_.end_pass();
    }
    follow(x, y, s, update);
    return engine_.end_step(update);
  }

  /// Largest difference of a master from the one in double, relative to the largest change so far.
  double difference() {
    const auto found = fetch();
    double most = 0;
    for (std::size_t i = 0; i < found.size(); ++i) most = std::max(most, std::abs(found[i] - weight_.values[i]));
    return most / largest_;
  }

  [[nodiscard]] bool refitted() const { return refitted_; }
  [[nodiscard]] double off() const { return off_; }  ///< of the last S from P' G Q, relative
  Engine& engine() { return engine_; }

 private:
  /// The same step by the formulas, in double but for the projectors, from the S that was given.
  void follow(const std::vector<std::uint16_t>& x, const std::vector<std::uint16_t>& y,
              const std::vector<std::uint16_t>& given, const StepUpdate& update) {
    const auto tokens = x.size() / space_.columns;
    const auto gradient = Toy::product(y, space_.rows, x, space_.columns, tokens);
    const Dense g(space_.rows, space_.columns, gradient);
    const auto d = space_.rank;
    subspace::Projectors next{subspace::Projector(space_.rows, d, space_.nonzeros),
                              subspace::Projector(space_.columns, d, space_.nonzeros)};
    if (refitted_) subspace::refit(next, gradient);
    if (steps_ == 0) projectors_ = next, first_ = second_ = Dense(d, d);
    const bool later = refitted_ && steps_ > 0;
    ++steps_;
    const int count = steps_ - begun_;
    const Dense p(projectors_.p), q(projectors_.q);
    Dense delta(d, d), s(d, d);
    for (std::size_t i = 0; i < given.size(); ++i) s.values[i] = test::to_float(given[i]);
    off_ = (s - p.turned() * g * q).norm() / s.norm();
    const auto [unused, beta1, beta2, epsilon, decay] = optim::kElementDefaults;
    const auto rate = update.learning_rate *
                      std::sqrt(static_cast<double>(space_.rows) * static_cast<double>(space_.columns)) /
                      static_cast<double>(d);
    for (std::size_t i = 0; i < d * d; ++i) {
      const double value = s.values[i];
      auto& m = first_.values[i];
      auto& v = second_.values[i];
      m = beta1 * m + (1 - beta1) * value;
      v = beta2 * v + (1 - beta2) * value * value;
      const double corrected = m / (1 - std::pow(beta1, count)), root = v / (1 - std::pow(beta2, count));
      delta.values[i] = -rate * corrected / (std::sqrt(root) + epsilon);
    }
    const auto change = p * delta * q.turned();
    for (std::size_t i = 0; i < weight_.values.size(); ++i) {
      weight_.values[i] = (1 - update.learning_rate * update.weight_decay) * weight_.values[i] + change.values[i];
      largest_ = std::max(largest_, std::abs(change.values[i]));
    }
    if (later) take_over(next);
  }

  /// What is refitted from a step's gradient is for the next step.
  void take_over(const subspace::Projectors& next) {
    if (description_.refits.rotate_every > 0) {
      first_ = second_ = Dense(space_.rank, space_.rank), begun_ = steps_;
    } else {
      carry(next);
    }
    projectors_ = next;
  }

  void carry(const subspace::Projectors& next) {
    const auto a = Dense(next.p).turned() * Dense(projectors_.p), b = Dense(next.q).turned() * Dense(projectors_.q);
    first_ = a * first_ * b.turned();
    second_ = squared(a) * second_ * squared(b).turned();
  }
  static Dense squared(Dense of) {
    for (auto& value : of.values) value *= value;
    return of;
  }

  const plan::Description description_;
  Engine engine_;
  Toy toy_;
  std::size_t tensor_ = 0;
  optim::Reduced space_;
  Dense weight_{0, 0}, first_{0, 0}, second_{0, 0};
  subspace::Projectors projectors_;
  int steps_ = 0, begun_ = 0;
  double largest_ = 0, off_ = 0;
  bool refitted_ = false;
};

Shape one_matrix() {
  return {.layers = 1, .embedding = false, .head = false, .tokens = 16, .micro_batches = 1, .subspace = "up"};
}

TEST(Subspace, StepsAreThoseOfDenseArithmeticInDouble) {
  std::size_t again = 0;
  for (const auto& [rank, nonzeros] : {std::pair{32, 4}, {64, 64}, {1, 1}, {48, 2}}) {
    auto shape = one_matrix();
    shape.rank = static_cast<std::uint64_t>(rank);
    shape.nonzeros = static_cast<std::uint64_t>(nonzeros);
    Reference reference(shape);
    std::size_t refitted = 0;
    for (std::uint64_t s = 1; s <= 7; ++s) {
      reference.step(s, {.learning_rate = 1e-2, .weight_decay = 0.1});
      refitted += reference.refitted() ? 1 : 0;
      EXPECT_LT(reference.off(), 0.02) << "x Q, y P and S are rounded to bf16; rank " << rank << ", step " << s;
      EXPECT_LT(reference.difference(), 1e-4) << "rank " << rank << ", step " << s;
    }
    EXPECT_GE(refitted, 1U);
    again += refitted - 1;
  }
  EXPECT_GE(again, 3U) << "no projectors were refitted, so no moments were carried over";
}

TEST(Subspace, RotatingBeginsMomentsAnewAtTimesOfTheirOwn) {
  auto shape = one_matrix();
  shape.checks = {.check_every = 100, .rotate_every = 3};
  Reference reference(shape);
  std::vector<std::uint64_t> refitted;
  for (std::uint64_t s = 1; s <= 9; ++s) {
    reference.step(s, {.learning_rate = 1e-2, .weight_decay = 0.1});
    if (reference.refitted()) refitted.push_back(s);
    EXPECT_LT(reference.difference(), 1e-4) << "step " << s;
  }
  EXPECT_EQ(refitted, (std::vector<std::uint64_t>{1, 4, 7}));  // tensor 0: after 3 and 6 updates
}

class SubspaceKinds : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Projectors, SubspaceKinds, ::testing::Bool(),
                         [](const auto& it) -> std::string { return it.param ? "Published" : "Fitted"; });

TEST_P(SubspaceKinds, AStepThatIsNotFiniteIsSkippedAndItsRefitsAreForgotten) {
  const auto description = describe({.layers = 2, .tokens = 32, .subspace = "up|down", .published = GetParam()});
  const auto run = [&](std::vector<int> poisoned) {
    Engine engine(description, everything_in_dram());
    engine.start();
    Toy toy(engine, description, description.micro_batches);
    toy.fill();
    for (std::uint64_t s = 1; s <= 8; ++s) {
      for (; !poisoned.empty() && poisoned.front() == static_cast<int>(s); poisoned.erase(poisoned.begin())) {
        toy.poison(true);
        EXPECT_TRUE(toy.step(s + 100).skipped);
        toy.poison(false);
      }
      EXPECT_FALSE(toy.step(s).skipped);
    }
    auto out = toy.masters();
    for (const auto& it : engine.refits()) {
      EXPECT_GE(it.refits, 2U);  // at the start, and after 3 or 6 where the estimate of what is missed was not 0
      EXPECT_GT(it.error, 0);
      EXPECT_LT(it.error, GetParam() ? 10.0 : 1.0);  // published pairs may add more than they catch
      out.push_back(static_cast<float>(it.refits));
      out.push_back(static_cast<float>(it.error));
    }
    return out;
  };
  const auto expected = run({});
  EXPECT_EQ(run({1, 4, 4, 5, 7}), expected);
}

TEST(Subspace, WhatCannotBeIsRefusedByName) {
  const auto message = [](const auto& make) -> std::string {
    try {
      make();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_input);
      return error.what();
    }
    return "nothing was refused";
  };
  for (const auto& [rank, nonzeros] : {std::pair{68, 4}, {32, 3}, {0, 4}, {32, 0}}) {
    auto shape = one_matrix();
    shape.rank = static_cast<std::uint64_t>(rank);
    shape.nonzeros = static_cast<std::uint64_t>(nonzeros);
    const auto found = message([&] { static_cast<void>(describe(shape).layout()); });
    EXPECT_NE(found.find("layers.0.up"), std::string::npos) << found;
    EXPECT_NE(found.find("lsp_rank"), std::string::npos) << found;
  }
  auto table = describe({});
  table.blocks.front().tensors.front().training = state::Training::reduced;
  EXPECT_NE(message([&] { static_cast<void>(table.layout()); }).find("embed"), std::string::npos);

  for (const auto type : {state::ComputeType::fp32, state::ComputeType::fp16}) {
    const auto masters = describe({.subspace = "up", .bf16_masters = true, .type = type});
    EXPECT_NE(message([&] { static_cast<void>(masters.layout()); }).find("layers.0.up cannot have a master in bf16"),
              std::string::npos);
  }
  auto whole = describe({});
  whole.blocks[1].tensors.front().form = state::Form::bf16_master;
  EXPECT_NE(message([&] { static_cast<void>(whole.layout()); }).find("master in bf16"), std::string::npos);

  auto shape = one_matrix();
  shape.optimizer = &optim::sgd;
  Reference reference(shape);
  EXPECT_NE(message([&] { reference.step(1, {.learning_rate = 1e-2, .weight_decay = 0.1}); }).find("weight_decay"),
            std::string::npos);
  EXPECT_NE(message([&] { static_cast<void>(reference.engine().wants_whole_gradient(0, 0)); }).find("pass"),
            std::string::npos);
}

// ---- wherever the bytes lie

Shape random_subspace_shape(std::mt19937& random, int round) {
  auto out = plan::test::random_shape(random, round);
  out.subspace = std::array{"up|down", "up", "layers\\.0"}[random() % 3];
  out.rank = std::array{32, 64, 12}[random() % 3];
  out.format = static_cast<state::StateFormat>(round % 3);
  if (random() % 4 == 0) out.frozen = "embed|norm";
  if (random() % 2 == 0) out.checks.rotate_every = 3;
  out.published = out.checks.rotate_every == 0 && random() % 3 != 0;
  out.bf16_masters = round % 3 == 2;
  return out;
}

class SubspaceRun : public ::testing::TestWithParam<Durability> {};

INSTANTIATE_TEST_SUITE_P(Levels, SubspaceRun, test::kEveryDurability, test::durability_name);

TEST_P(SubspaceRun, PlacementAndGoingOnChangeNoBit) {
  test::expect_same_bits_of_models(23, spillway::testing::few_or(5, 9), 14, GetParam(), random_subspace_shape);
}

TEST(Subspace, EarlyUpdatesThatStayOrArePutBackChangeNoBit) {
  const auto description = describe({.layers = 3, .tokens = 32, .subspace = "up|down"});
  constexpr std::uint64_t kSteps = 24, kMost = 2000;  // on a busy machine few updates are done before their step ends
  std::uint64_t steps = kSteps;
  const auto run = [&](bool early) {
    auto settings = everything_in_dram();
    settings.budget.clipping = false;
    settings.budget.update_schedule = early ? plan::Updates::early : plan::Updates::deferred;
    Engine engine(description, settings);
    EXPECT_EQ(engine.plan().early_chunks > 0, early);
    engine.start();
    Toy toy(engine, description, description.micro_batches);
    toy.fill();
    toy.update.max_grad_norm = 0;
    std::size_t undone = 0;
    for (std::uint64_t s = 1; s <= steps; ++s) {
      toy.expected = toy.update;
      if (s % 2 == 0) toy.expected->learning_rate *= 2;  // a wrong guess
      undone += toy.step(s).undone;
      if (early && undone == 0 && s == steps && steps < kMost) ++steps;
    }
    EXPECT_EQ(undone > 0, early);
    return toy.masters();
  };
  const auto early = run(true);
  EXPECT_EQ(early, run(false)) << steps << " steps";
}

TEST_P(SubspaceKinds, AStateThatStandsAloneGoesOnBitByBit) {
  for (const auto format : {state::StateFormat::exact, state::StateFormat::bf16, state::StateFormat::int8}) {
    for (const std::uint64_t rank : {32, 64, 12}) {  // 12: a small S
      const auto description = describe({.layers = 2,
                                         .tokens = 32,
                                         .format = format,
                                         .subspace = "up|down",
                                         .rank = rank,
                                         .published = GetParam(),
                                         .bf16_masters = rank == 64});
      const Directory out;
      std::vector<float> expected;
      {
        Engine engine(description, everything_in_dram());
        engine.start();
        Toy toy(engine, description, description.micro_batches);
        toy.fill();
        for (std::uint64_t s = 1; s <= 4; ++s) toy.step(s);
        engine.save_weights(out.path(), 1 * GiB);
        engine.save_state(out.path() / "state");
        for (std::uint64_t s = 5; s <= 8; ++s) toy.step(s);
        expected = toy.masters();
      }
      EXPECT_TRUE(std::filesystem::exists(out.path() / "state" / "projectors.safetensors"));
      Engine engine(description, everything_in_dram());
      engine.start();
      EXPECT_EQ(engine.load_state(out.path() / "state", out.path(), 4), format);
      Toy toy(engine, description, description.micro_batches);
      for (std::uint64_t s = 5; s <= 8; ++s) toy.step(s);
      EXPECT_EQ(toy.masters(), expected) << name_of(format) << " rank " << rank;

      for (const bool kind : {false, true}) {
        const auto other = describe({.layers = 2,
                                     .tokens = 32,
                                     .format = format,
                                     .subspace = "up|down",
                                     .rank = kind ? rank : 48,
                                     .published = kind != GetParam()});
        Engine stranger(other, everything_in_dram());
        stranger.start();
        EXPECT_THROW(stranger.load_state(out.path() / "state", out.path(), 4), Error);
      }
    }
  }
}

TEST(Subspace, MovesSInsteadOfTheGradientAndNoMomentsOfTheMatrix) {
  const auto moved = [](const std::string& subspace) {
    Settings settings;
    settings.budget.dram = 1 * GiB;
    settings.budget.placement = {0, 0, 0, 1};
    settings.budget.durability = Durability::none;
    const Directory where;
    settings.storage.places.push_back({where.path()});
    settings.budget.paths.push_back({.name = "path:0", .capacity = 1 * GiB});
    const Engine engine(describe({.layers = 4,
                                  .hidden = 256,
                                  .ffn = 512,
                                  .embedding = false,
                                  .head = false,
                                  .chunk_elements = 1 << 16,
                                  .subspace = subspace,
                                  .rank = 64}),
                        settings);
    return static_cast<double>(engine.plan().read_per_step + engine.plan().written_per_step);
  };
  // Of an element: weight read twice and written, remainder and both moments in and out, gradient out and in: 30 bytes;
  // inside weight and remainder alone, 10, and the rest of a sixteenth or an eighth of the elements.
  EXPECT_LT(moved("up|down"), 0.45 * moved(""));
}

}  // namespace
}  // namespace spillway
