#include "spillway/sys/library.h"

#include <dlfcn.h>

#include "spillway/base/error.h"

namespace spillway::sys {
namespace {

std::string reason() {
  const char* words = ::dlerror();
  return words == nullptr ? "unknown" : words;
}

}  // namespace

Library::Library(const std::string& name) : name_(name), handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) throw Error(ErrorCode::unsupported, text(name, " does not load: ", reason()));
}

void* Library::symbol(const char* name) const {
  void* const address = ::dlsym(handle_, name);
  if (address == nullptr) throw Error(ErrorCode::unsupported, text(name_, " has no ", name, ": ", reason()));
  return address;
}

}  // namespace spillway::sys
