// Hooks that only tests of the engine need.
#pragma once

#include <memory>
#include <utility>

#include "spillway/engine.h"
#include "spillway/sys/ring.h"

namespace spillway {

struct TestHooks {
  sys::RingFactory ring = {};  ///< how the storage paths move bytes; empty: the machine's best
};

inline void use_ring(Settings& settings, sys::RingFactory ring) {
  settings.hooks = std::make_shared<const TestHooks>(TestHooks{.ring = std::move(ring)});
}

}  // namespace spillway
