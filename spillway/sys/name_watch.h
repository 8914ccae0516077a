// Whether a file still has its name, asked so that a file system which does not answer holds up nobody.
#pragma once

#include <chrono>
#include <memory>

#include "spillway/sys/file.h"

namespace spillway::sys {

/// A file that was opened, and its path. One thread may use an object; the file may be closed before it.
class NameWatch {
 public:
  /// Throws Error(io) where the system says nothing of the file.
  explicit NameWatch(const File& file);

  /// Whether the path names another file, or none. Asks the system on a thread that nobody waits for, and waits for the
  /// answer so long; what was answered last where there is none yet. False where the system cannot say.
  [[nodiscard]] bool is_lost(std::chrono::milliseconds patience) const;

 private:
  struct Question;

  std::shared_ptr<Question> question_;
};

}  // namespace spillway::sys
