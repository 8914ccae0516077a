// How a device is shared between processes.
#pragma once

#include <chrono>
#include <filesystem>

#include "spillway/base/bytes.h"
#include "spillway/sys/shared_memory.h"

namespace spillway::storage {

struct ShareOptions {
  /// Bytes that all processes together keep in flight at the device. They should be enough to keep it busy. Those of
  /// the process that came first count.
  Bytes read_budget = 16 * MiB;
  Bytes write_budget = 16 * MiB;
  /// How long to wait for another process that is joining.
  std::chrono::milliseconds patience = std::chrono::seconds(5);
  std::filesystem::path directory = sys::shared_memory_directory();  ///< of the table
};

}  // namespace spillway::storage
