// Host memory that the fake driver allocates for copies. The host may touch a page of it when it has waited for the
// copies that use the page; any other touch is a race, whatever the timing was.
//
// Each page is mapped twice. The driver uses the second mapping. The first one is the host's, and is closed from the
// call that gives a copy to a stream until the host has waited for the copy: to writes where the copy reads, to
// everything where the copy writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <string>

#include "tests/device/happens_before.h"

namespace spillway::device::fake {

/// One thread at a time calls it.
class StagingGuard {
 public:
  /// Zeros. Null: the system has no such memory.
  [[nodiscard]] void* allocate(std::size_t bytes);
  void free(void* address);
  /// The driver's address of a byte; of memory that is not guarded, its own.
  [[nodiscard]] std::byte* driver_address(const void* at) const;

  /// The copy that uses a range is the `count`th operation of a stream now. Ranges of other memory are ignored.
  void close(const Range& range, const std::string& name, Participant stream, std::uint64_t count);
  /// Opens what the host has waited for.
  void reopen(const HappensBefore& order);

  /// The host has touched an address that may be closed. Opens the pages of the copy, and returns the race in words;
  /// empty: the address is not closed.
  [[nodiscard]] std::string touch(const void* at);

 private:
  struct Memory {
    std::byte* second = nullptr;
    std::size_t bytes = 0;
  };
  struct Closed {
    Range range;
    std::string name;
    Participant stream = 0;
    std::uint64_t count = 0;
  };

  [[nodiscard]] std::map<const std::byte*, Memory>::const_iterator memory_of(const void* at) const;

  std::map<const std::byte*, Memory> memory_;  ///< by the host's address
  std::list<Closed> closed_;
};

}  // namespace spillway::device::fake
