// What ThreadSanitizer cannot see in this program.

/// The reference count of std::exception_ptr lives in libstdc++, which is not instrumented: handing an Error from the
/// path's thread to another looks like a race between its last reader and its destruction.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
