// What a run has left is read without going on with it, and nothing is written.
#include "spillway/execute/read_back.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/execute/planned.h"
#include "tests/sys/failing.h"

namespace spillway::execute {
namespace {

using test::Planned;

std::vector<float> read_masters(ReadBack& back, const Planned& planned) {
  std::vector<float> out;
  for (std::size_t t = 0; t < planned.layout.tensors().size(); ++t) {
    std::vector<float> values(planned.layout.tensors()[t].elements);
    back.fetch(t, 0, values);
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

std::string file_bytes(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ReadBack, ReadsTheNewestStepAndACheckpoint) {
  const Planned planned;
  std::vector<float> first, second;
  {
    execute::Run run(planned.run_plan(), planned.volumes(), 1, {});
    test::fill(run, planned);
    test::train_step(run, planned);
    first = test::masters(run, planned);
    run.save_manifest(planned.where());
    test::train_step(run, planned);
    run.commit("newest");
    run.wait_durable();
    execute::Run other(planned.run_plan(), Planned().volumes(), 1, {});
    test::fill(other, planned);
    for (int step = 0; step < 2; ++step) test::train_step(other, planned);
    second = test::masters(other, planned);
  }
  const auto before = file_bytes(planned.volume());
  {
    ReadBack back(planned.run_plan(), planned.volumes(), 1, std::nullopt);
    EXPECT_EQ(back.recovery().step, 2U);
    EXPECT_EQ(back.recovery().payload, "newest");
    EXPECT_EQ(back.recovery().replayed, planned.layout.chunks().size());
    EXPECT_EQ(read_masters(back, planned), second);
    EXPECT_ERROR(back.store(0, nullptr, nullptr), ErrorCode::internal, "not to be changed");
  }
  {
    ReadBack back(planned.run_plan(), planned.volumes(), 1, planned.where());
    EXPECT_EQ(back.recovery().step, 1U);
    EXPECT_EQ(read_masters(back, planned), first);
  }
  EXPECT_EQ(file_bytes(planned.volume()), before);
}

TEST(ReadBack, NamesThePathsThatHoldNothing) {
  const Planned planned;
  EXPECT_ERROR(ReadBack(planned.run_plan(), planned.volumes(), 1, std::nullopt), ErrorCode::bad_input,
               planned.volume().parent_path().string() + " holds nothing of the run a run");
}

}  // namespace
}  // namespace spillway::execute
