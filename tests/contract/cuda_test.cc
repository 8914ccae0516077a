// Whole steps on the `cuda` device, over a driver made of host memory: every call that a run on a GPU makes, in streams
// with random delays, with the bits of host memory; and what such a run says when the driver refuses.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <utility>

#include "tests/contract/directory.h"
#include "tests/contract/on_gpu.h"
#include "tests/nightly.h"
#include "tests/plan/models.h"

namespace spillway {
namespace {

using device::Setting;
using plan::test::describe;
using test::Caller;
using test::on_gpu;
using test::train_on_gpu;

TEST(CudaSteps, ChangeNoBit) {
  std::mt19937 random(41);
  std::uniform_real_distribution<> share(0, 1);
  for (int round = 0; round < spillway::testing::few_or(5, 8); ++round) {
    auto shape = plan::test::random_shape(random, round);
    if (round % 3 == 2) shape.frozen = "up|down|embed";
    shape.format = static_cast<state::StateFormat>((round + 1) % 3);
    const auto description = describe(shape);
    const auto expected = train_on_gpu(description, everything_in_dram(), 4, nullptr);
    for (const bool own_stream : {false, true}) {
      const Setting registers("FAKE_CUDA_REGISTERS", random() % 3 == 0 ? "0" : "1");
      const Setting limit("FAKE_CUDA_REGISTERS_KIB", random() % 2 == 0 ? "0" : "600");
      Caller caller(own_stream);
      auto settings = on_gpu(caller);
      settings.device.cuda.piece = (1 + random() % 32) * 16 * KiB;
      settings.budget.window = random() % 4;
      settings.budget.device->weight = share(random);
      settings.budget.device->activation = share(random);
      settings.budget.device->state = own_stream ? share(random) : 0;
      settings.budget.device->device_updated = share(random);
      settings.budget.device->grad = share(random);
      settings.budget.device->coalesce_to = random() % (48 * KiB);
      expect_same(expected, train_on_gpu(description, settings, 4, &caller),
                  text("round ", round, " stream ", own_stream));
    }
  }
}

/// Host memory that the driver registers whole, in some pieces, or not at all.
TEST(CudaSteps, CopiesThroughStagingBuffersChangeNoBit) {
  const auto description = describe({.layers = 3, .hidden = 32, .ffn = 48, .vocabulary = 120, .tokens = 32});
  const auto expected = train_on_gpu(description, everything_in_dram(), 4, nullptr);
  const std::array<plan::DeviceTier, 3> tiers = {
      plan::DeviceTier{.capacity = 48 * MiB, .weight = 0, .activation = 0, .coalesce_to = 4 * KiB},
      plan::DeviceTier{.capacity = 48 * MiB, .weight = 0, .activation = 0.5, .device_updated = 1},
      plan::DeviceTier{.capacity = 48 * MiB, .weight = 0.3, .state = 0.5, .device_updated = 0.6, .grad = 0.5}};
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    for (const auto& [registers, most] : {std::pair("1", "0"), std::pair("1", "48"), std::pair("0", "0")}) {
      const Setting any("FAKE_CUDA_REGISTERS", registers);
      const Setting limit("FAKE_CUDA_REGISTERS_KIB", most);
      Caller caller(t % 2 == 0);
      auto settings = on_gpu(caller);
      settings.device.cuda.piece = 16 * KiB;
      settings.budget.window = t % 3;
      settings.budget.device = tiers[t];
      std::string notice;
      expect_same(expected, train_on_gpu(description, settings, 4, &caller, &notice),
                  text("tier ", t, " registers ", registers, " at most ", most, " KiB"));
      const bool all = std::string(registers) == "1" && std::string(most) == "0";
      EXPECT_EQ(notice.empty(), all) << notice;
    }
  }
}

std::string refusal(const Settings& settings, ErrorCode code) {
  try {
    Engine engine(describe({}), settings);
    engine.start();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "started";
  return {};
}

TEST(CudaSteps, AGpuThatIsFullIsSaidBeforeTheFirstStep) {
  const Caller caller(false);
  const Setting full("FAKE_CUDA_MIB", "0");
  const test::Directory directory;
  auto settings = on_gpu(caller);
  settings.storage.places.push_back({directory.path()});
  settings.budget.paths.push_back({.capacity = 1 * GiB});
  settings.budget.placement = {0.0, 0.0, 0.0, 0.0};
  const auto words = refusal(settings, ErrorCode::does_not_fit);
  EXPECT_NE(words.find("does not fit on cuda:1 (Fake GPU)"), std::string::npos) << words;
  EXPECT_NE(words.find("use a smaller --gpu_memory, or end what else runs there"), std::string::npos) << words;
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(CudaSteps, WithoutKernelsARunIsRefused) {
  const Caller caller(false);
  auto settings = on_gpu(caller);
  settings.device.cuda.kernels = {};
  const auto words = refusal(settings, ErrorCode::unsupported);
  EXPECT_NE(words.find("no kernels for a GPU"), std::string::npos) << words;
}

TEST(CudaSteps, AGpuThatIsNotThereIsRefused) {
  const Caller caller(false);
  auto settings = on_gpu(caller);
  settings.device.name = "cuda:2";
  const auto words = refusal(settings, ErrorCode::bad_input);
  EXPECT_NE(words.find("cuda:2 is not there; this process sees 2 GPUs"), std::string::npos) << words;
}

/// Whichever copy it is: the step says it, and the run ends without more harm.
TEST(CudaSteps, ACopyThatFailsEndsTheRunWithItsName) {
  const auto description = describe({.layers = 2});
  int failed = 0;
  for (int at = 1; at <= 400; at += 13) {
    Caller caller(at % 2 == 0);
    auto settings = on_gpu(caller);
    settings.budget.device->weight = settings.budget.device->activation = 0;
    settings.budget.device->coalesce_to = 4 * KiB;
    const Setting fails("FAKE_CUDA_FAILS_AFTER", std::to_string(at).c_str());
    try {
      train_on_gpu(description, settings, 2, &caller);
    } catch (const Error& error) {
      ++failed;
      EXPECT_EQ(error.code(), ErrorCode::io) << error.what();
      EXPECT_NE(std::string(error.what()).find("the GPU failed in cuMemcpy"), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(failed, 3);
}

}  // namespace
}  // namespace spillway
