#include "spillway/network/served.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/sys/failing.h"

namespace spillway::network {
namespace {

/// How a transfer ended, in words; empty: it has not.
struct Ending {
  std::optional<std::string> words = {};
  [[nodiscard]] Done done() {
    return [this](const std::exception_ptr& error) {
      words = "well";
      try {
        if (error) std::rethrow_exception(error);
      } catch (const Error& found) {
        words = found.what();
      }
    };
  }
};

TEST(Served, HandsTransfersOutInOrderAndTellsHowTheyEnded) {
  Served port(1, 3);
  std::vector<std::byte> bytes(8);
  Ending first, second;
  port.start({{.peer = 0, .sends = true, .bytes = bytes}, {.peer = 2, .sends = false, .bytes = bytes}}, first.done());
  port.start({{.peer = 2, .sends = true, .bytes = bytes}}, second.done());
  EXPECT_EQ(port.under_way(), 2U);
  EXPECT_ERROR(port.end(0, ""), ErrorCode::bad_input, "was not taken");
  const auto taken = port.next();
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->id, 0U);
  EXPECT_EQ(taken->messages.size(), 2U);
  EXPECT_EQ(port.next()->id, 1U);
  port.end(1, "rank 2 (node2) does not answer");
  EXPECT_NE(second.words->find("rank 2 (node2)"), std::string::npos);
  EXPECT_FALSE(first.words.has_value());
  port.end(0, "");
  EXPECT_EQ(first.words, "well");
  EXPECT_ERROR(port.end(0, ""), ErrorCode::bad_input, "has ended");
  EXPECT_EQ(port.under_way(), 0U);
}

TEST(Served, RefusesPeersThatAreNone) {
  Served port(1, 3);
  std::vector<std::byte> bytes(8);
  Ending ending;
  EXPECT_ERROR(port.start({{.peer = 3, .bytes = bytes}}, ending.done()), ErrorCode::bad_input, "rank 3");
  EXPECT_ERROR(port.start({{.peer = 1, .bytes = bytes}}, ending.done()), ErrorCode::bad_input, "rank 1");
  EXPECT_ERROR(port.start({{.peer = 0, .bytes = {}}}, ending.done()), ErrorCode::bad_input, "0 bytes");
  EXPECT_FALSE(ending.words.has_value());
  port.start({}, ending.done());
  EXPECT_EQ(ending.words, "well");
}

TEST(Served, LetsGoWhenItIsClosed) {
  Served port(0, 2);
  std::vector<std::byte> bytes(8);
  Ending waiting, late;
  std::optional<Transfer> taken = Transfer{};
  port.start({{.peer = 1, .sends = true, .bytes = bytes}}, waiting.done());
  static_cast<void>(port.next());
  std::thread server([&] { taken = port.next(); });
  port.close();
  server.join();
  EXPECT_FALSE(taken.has_value());
  EXPECT_NE(waiting.words->find("was closed"), std::string::npos);
  port.start({{.peer = 1, .sends = true, .bytes = bytes}}, late.done());
  EXPECT_NE(late.words->find("is closed"), std::string::npos);
  port.end(0, "");  // whoever served it says so late
  port.close();
}

}  // namespace
}  // namespace spillway::network
