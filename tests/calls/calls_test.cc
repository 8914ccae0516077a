// Every system call of a scenario fails, one after the other, and every allocation: a clear error, or none, and the old
// state or the new one, whole.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <random>
#include <vector>

#include "tests/calls/allocations.h"
#include "tests/calls/scenario.h"
#include "tests/calls/tracer.h"
#include "tests/contract/directory.h"
#include "tests/needs.h"
#include "tests/nightly.h"

namespace spillway::calls {
namespace {

const std::map<std::string, int> kErrors = {
    {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EINTR", EINTR}, {"EMFILE", EMFILE}, {"kill", kKill}};

/// Another one in each nightly run; the usual run is the same everywhere, since this campaign still finds something
/// new.
unsigned seed() {
  const auto* asked = std::getenv("SPILLWAY_SEED");
  if (asked != nullptr) return static_cast<unsigned>(std::strtoul(asked, nullptr, 10));
  return testing::nightly() ? std::random_device()() : 5;
}

/// Between those of `all` that are failed: every one in `make nightly`, else `few`; SPILLWAY_CALLS=n: so many.
std::uint64_t stride_of(std::uint64_t all, std::uint64_t few) {
  const auto* asked = std::getenv("SPILLWAY_CALLS");
  const auto wanted = asked == nullptr ? testing::few_or(few, all) : std::strtoull(asked, nullptr, 10);
  return std::max<std::uint64_t>(1, all / std::max<std::uint64_t>(1, wanted));
}

/// Numbers from a random one on; SPILLWAY_CALL=n: that one alone.
std::vector<std::uint64_t> numbers(std::uint64_t all, std::uint64_t stride, std::mt19937& random) {
  if (const auto* asked = std::getenv("SPILLWAY_CALL")) return {std::strtoull(asked, nullptr, 10)};
  std::vector<std::uint64_t> out;
  for (auto n = 1 + random() % stride; n <= all; n += stride) out.push_back(n);
  return out;
}

/// Told, where a child's child sees the same bytes.
class Shared {
 public:
  Shared()
      : at_(::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        told_(new (at_) Told) {}
  ~Shared() { ::munmap(at_, sizeof(Told)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  void reset() { told_ = new (at_) Told; }
  Told& operator*() { return *told_; }
  Told* operator->() { return told_; }

 private:
  void* at_;
  Told* told_;
};

void note(Told& told, const char* words, bool clear) {
  std::strncpy(told.words.data(), words, told.words.size() - 1);
  told.clear = clear;
}

class Calls : public ::testing::TestWithParam<Scenario> {
 protected:
  /// The scenario in this process, its end as an exit status.
  int life(const Stage& stage, const Settings& settings, const std::function<void()>& planned) {
    try {
      scenes().play(GetParam(), stage, settings, planned, *told_);
      disarm();
      return kDone;
    } catch (const std::filesystem::filesystem_error& error) {  // of what the face does between the engine's calls
      disarm();
      note(*told_, error.what(), true);
      return kFailed;
    } catch (const std::bad_alloc&) {  // which the bindings put into words
      disarm();
      note(*told_, "memory has run out", true);
      return kFailed;
    } catch (const Error& error) {
      disarm();
      note(*told_, error.what(), true);
      return kFailed;
    } catch (const std::exception& error) {
      disarm();
      note(*told_, error.what(), false);
      return kUnclear;
    }
  }

  void SetUp() override {
    const auto outcome = traced({}, {}, [] { return 0; });
    SPILLWAY_NEEDS(ptrace, !outcome.untold && outcome.signal == 0, "one process may not watch another here");
  }

  static const Scenes& scenes() {
    static const Scenes all;
    return all;
  }

  Outcome disturbed(const Stage& stage, Watch watch, const Fault& fault, bool keep_log = false) {
    told_.reset();
    watch.under = {stage.where.string()};
    const auto settings = scenes().settings(GetParam(), stage);
    return traced(
        watch, fault, [&] { return life(stage, settings, [] {}); }, keep_log);
  }

  /// Empty when all is as it must be.
  std::string judged(const Stage& stage, const Fault& fault, const Outcome& outcome) {
    const bool done = outcome.signal == 0 && outcome.code == kDone;
    std::string said = told_->words.data();
    std::string wrong;
    if (outcome.hung) wrong = "it hung";
    const bool killed = outcome.reached && fault.error == kKill;
    if (outcome.signal != 0 && !killed && !outcome.hung) wrong = text("it died by signal ", outcome.signal);
    if (outcome.signal == 0 && outcome.code == kUnclear) wrong = text("no clear error: ", said);
    if (outcome.signal == 0 && outcome.code != kDone && outcome.code != kFailed && outcome.code != kUnclear) {
      wrong = text("exit status ", outcome.code);
    }
    if (outcome.signal == 0 && outcome.code == kFailed && (said.empty() || said.find('\n') != std::string::npos)) {
      wrong = text("not one line: ", said);
    }
    const bool fatal = fault.error == EIO || fault.error == ENOSPC;
    if (done && outcome.reached && fatal && is_flush(outcome.at.name) && GetParam() != Scenario::remove) {
      wrong = "a flush failed, and it ended well";
    }
    if (const auto result = scenes().whole(GetParam(), stage, *told_, done); !result) {
      wrong += text(wrong.empty() ? "" : "; ", result.message(), " (it said: ", said, ")");
    }
    return wrong;
  }

  Shared told_;
  const test::Directory where_{"/dev/shm"}, on_drive_;
};

TEST_P(Calls, EachFails) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer ends the process where its own calls fail";
#endif
  const auto chosen = seed();
  std::mt19937 random(chosen);
  std::uint64_t cases = 0, failed = 0;
  for (const bool rings : {false, true}) {
    const Stage stage{(rings ? on_drive_ : where_).path(), rings ? 2U : 1U};
    scenes().prepare(GetParam(), stage);
    const auto plain = disturbed(stage, {.rings = rings}, {});
    ASSERT_EQ(judged(stage, {}, plain), "") << "undisturbed";
    const auto stride = stride_of(plain.calls, 1);
    std::printf("%s, %s: %lu calls, SPILLWAY_SEED=%u\n", name_of(GetParam()).c_str(), rings ? "rings" : "no rings",
                plain.calls, chosen);
    for (const auto& [name, error] : kErrors) {
      for (const auto n : numbers(plain.calls, stride, random)) {
        scenes().prepare(GetParam(), stage);
        const Fault fault{n, error};
        const auto outcome = disturbed(stage, {.rings = rings}, fault);
        ++cases;
        failed += outcome.code != kDone || outcome.signal != 0;
        const auto wrong = judged(stage, fault, outcome);
        if (wrong.empty()) continue;
        ADD_FAILURE() << text(name_of(GetParam()), rings ? ", rings" : "", ", call ", n, " is ", name, " of ",
                              outcome.at.name, ' ', outcome.at.path, ": ", wrong);
      }
    }
  }
  std::printf("%s: %lu calls failed, %lu lives ended by it\n", name_of(GetParam()).c_str(), cases, failed);
}

TEST_P(Calls, EachAllocationFails) {
  const auto chosen = seed();
  std::mt19937 random(chosen);
  const Stage stage{where_.path(), 1};
  const auto fed = [&](std::uint64_t n, bool forever) {
    told_.reset();
    Watch watch;
    watch.under = {"/nowhere"};
    watch.resources = false;
    const auto settings = scenes().settings(GetParam(), stage);
    return traced(watch, {}, [&] { return life(stage, settings, [&] { arm(n, forever, told_->allocations); }); });
  };
  scenes().prepare(GetParam(), stage);
  const auto plain = fed(0, false);
  ASSERT_EQ(judged(stage, {}, plain), "") << "undisturbed";
  const auto all = told_->allocations.load();
  std::printf("%s: %lu allocations, SPILLWAY_SEED=%u\n", name_of(GetParam()).c_str(), all, chosen);
  const auto stride = stride_of(all, 2);
  std::uint64_t cases = 0, failed = 0;
  for (const bool forever : {false, true}) {
    if (forever && !testing::nightly()) break;
    for (const auto n : numbers(all, stride, random)) {
      scenes().prepare(GetParam(), stage);
      const auto outcome = fed(n, forever);
      ++cases;
      failed += outcome.code != kDone;
      const auto wrong = judged(stage, {}, outcome);
      if (wrong.empty()) continue;
      ADD_FAILURE() << name_of(GetParam()) << ", allocation " << n << (forever ? " and all after it: " : ": ") << wrong;
    }
  }
  std::printf("%s: %lu allocations failed, %lu lives ended by it\n", name_of(GetParam()).c_str(), cases, failed);
}

class Creation : public Calls {};

/// The last call of making a volume: it has its name, but that may not be durable.
TEST_P(Creation, FailsWhereItsNameIsFlushed) {
  const Stage stage{where_.path(), 1};
  scenes().prepare(GetParam(), stage);
  const Watch files{.resources = false, .rings = false};  // whose calls come in one order
  const auto log = disturbed(stage, files, {}, true).log;
  const auto flushed = std::ranges::find_if(log, [&](const Call& call) {
    return is_flush(call.name) && std::filesystem::path(call.path) == stage.where / "0";
  });
  ASSERT_NE(flushed, log.end());
  scenes().prepare(GetParam(), stage);
  const Fault fault{static_cast<std::uint64_t>(flushed - log.begin()) + 1, EIO};
  const auto outcome = disturbed(stage, files, fault);
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_EQ(judged(stage, fault, outcome), "");
}

INSTANTIATE_TEST_SUITE_P(Of, Creation, ::testing::Values(Scenario::create),
                         [](const auto& test) { return name_of(test.param); });
INSTANTIATE_TEST_SUITE_P(Of, Calls, ::testing::ValuesIn(kScenarios),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace spillway::calls
