// A shared library that is looked for when the program runs, so that nothing is linked to it.
#pragma once

#include <string>

namespace spillway::sys {

/// Stays loaded for the rest of the process: drivers do not bear to be unloaded.
class Library {
 public:
  /// Throws Error(unsupported) with the loader's own words when it is not there or does not load.
  explicit Library(const std::string& name);

  /// Address of a symbol. Throws Error(unsupported) when the library has none of that name.
  [[nodiscard]] void* symbol(const char* name) const;

 private:
  std::string name_;
  void* handle_;
};

}  // namespace spillway::sys
