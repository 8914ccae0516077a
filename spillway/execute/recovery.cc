#include "spillway/execute/recovery.h"

#include <cmath>

#include "spillway/base/error.h"
#include "spillway/optim/step.h"

namespace spillway::execute {

void Recovery::take(const journal::Commit& commit, const optim::Descriptor& optimizer) {
  found = true;
  step = commit.step;
  applied = commit.applied();
  updates = optim::decode(optimizer, commit.update).step;
  payload.assign(reinterpret_cast<const char*>(commit.payload.data()), commit.payload.size());
}

std::string Recovery::words() const {
  if (!found) return {};
  auto out = text("recovered step ", step, " from the storage paths: ", chunks, " chunks");
  if (replayed > 0) {
    out += text(", ", replayed, " of them updated again from their gradients, up to ", replayed_steps,
                replayed_steps == 1 ? " time" : " times");
  }
  if (cut_off) out += text(", without step ", *cut_off, ", which another process did not have");
  out += text(", in ", std::round(seconds * 10) / 10, " s");
  if (!damage.empty()) {
    out += text("; ", damage.size(), " damaged records were passed over, the first is ", damage.front());
  }
  return out;
}

}  // namespace spillway::execute
