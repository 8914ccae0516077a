// A step that has ended is not lost: whatever lies where, and however the run goes on.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <span>

#include "tests/contract/directory.h"
#include "tests/contract/toy.h"
#include "tests/plan/models.h"

namespace spillway {
namespace {

using plan::Durability;
using plan::test::describe;
using plan::test::Shape;
using test::Directory;

/// A run of a toy, and the same run kept wholly in memory.
class Durable : public ::testing::Test {
 protected:
  using Masters = std::vector<float>;

  void model(const Shape& shape) {
    description_ = describe(shape);
    truth_.clear();
    Settings settings;
    settings.budget.dram = 4 * GiB;
    Engine engine(description_, settings);
    engine.start();
    test::Toy toy(engine, description_, description_.micro_batches);
    toy.fill();
    truth_.push_back(toy.masters());
    for (std::uint64_t s = 1; s <= kSteps; ++s) {
      toy.step(s);
      truth_.push_back(toy.masters());
    }
  }

  Settings settings(std::size_t paths, Durability durability = Durability::step) {
    Settings out;
    out.budget.dram = 2 * GiB;
    out.budget.durability = durability;
    out.storage.keep = true;
    out.run = "a run";
    for (std::size_t p = 0; p < paths; ++p) {
      out.storage.places.push_back({directories_[p].path()});
      out.budget.paths.push_back({.name = text("path:", p), .capacity = 1 * GiB});
    }
    return out;
  }

  /// Steps up to and with `last`, each committed with its number.
  void train(Engine& engine, std::uint64_t first, std::uint64_t last) {
    test::Toy toy(engine, description_, description_.micro_batches);
    for (std::uint64_t s = first; s <= last; ++s) {
      toy.step(s);
      engine.commit(text("step ", s));
    }
  }

  void expect_truth(Engine& engine, std::uint64_t step, const std::string& what) {
    test::Toy toy(engine, description_, description_.micro_batches);
    const auto found = toy.masters();
    ASSERT_EQ(found.size(), truth_[step].size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(truth_[step][i]), std::bit_cast<std::uint32_t>(found[i]))
          << what << ", step " << step << ", element " << i;
    }
  }

  static constexpr std::uint64_t kSteps = 24;
  plan::Description description_;
  std::vector<Masters> truth_;  ///< by step
  std::array<Directory, 3> directories_;
};

Shape random_shape(std::mt19937& random, int round) {
  Shape shape;
  shape.layers = 1 + static_cast<std::int64_t>(random() % 4);
  shape.head = round % 5 != 4;
  shape.tied = random() % 2 == 0;
  shape.embedding = round % 4 != 3;
  shape.micro_batches = 1 + random() % 2;
  shape.tokens = 32;
  return shape;
}

plan::Placement random_placement(std::mt19937& random, int kind) {
  std::uniform_real_distribution<> share(0, 1);
  const auto pick = [&]() -> double { return kind == 0 ? 0 : kind == 1 ? 1 : share(random); };
  return {pick(), pick(), pick(), pick()};
}

TEST_F(Durable, ARunThatEndedGoesOnWhereItWasWithAnyOtherPlacement) {
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    model(random_shape(random, round));
    const auto paths = 1 + random() % 3;
    std::uint64_t done = 0;
    for (int life = 0; done < kSteps; ++life) {
      auto now = settings(paths);
      now.storage.overwrite = life == 0;
      now.budget.placement = random_placement(random, static_cast<int>(random() % 3));
      now.threads = 1 + random() % 3;
      Engine engine(description_, now);
      const auto found = engine.start({.reopen = life > 0});
      ASSERT_EQ(found.found, life > 0);
      ASSERT_EQ(found.step, done);
      const auto what = text("round ", round, " life ", life);
      if (life == 0) {
        test::Toy(engine, description_, description_.micro_batches).fill();
      } else {
        ASSERT_EQ(found.payload, text("step ", done));
        expect_truth(engine, done, what);
      }
      const auto last = std::min(kSteps, done + 1 + random() % 9);
      train(engine, done + 1, last);
      done = last;
      if (random() % 2 == 0) expect_truth(engine, done, what);
      engine.close();
    }
  }
}

}  // namespace
}  // namespace spillway
