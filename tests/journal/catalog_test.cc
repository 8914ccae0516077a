#include "spillway/journal/catalog.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/storage/allocations.h"

namespace spillway::journal {
namespace {

using storage::testing::allocations;

TEST(Catalog, VersionsAreGivenBackWithoutAnAllocation) {
  const JournalSpec spec;
  Catalog catalog(spec);
  std::vector<Version*> versions(100);
  for (auto& version : versions) version = catalog.make(1, 1, {});
  const auto before = allocations();
  for (auto* version : versions) catalog.recycle(version);
  EXPECT_EQ(allocations(), before);
}

}  // namespace
}  // namespace spillway::journal
