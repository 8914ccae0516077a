#include "spillway/execute/recovery.h"

#include <cmath>

#include "spillway/base/error.h"
#include "spillway/optim/step.h"

namespace spillway::execute {

void Recovery::take(const journal::Commit& commit, const optim::Descriptor& optimizer) {
  has_step = true;
  step = commit.step;
  applied = commit.applied();
  updates = optim::decode(optimizer, commit.update).step;
  payload.assign(reinterpret_cast<const char*>(commit.payload.data()), commit.payload.size());
}

std::string Recovery::words() const {
  if (!has_step) return {};
  auto out = text("recovered step ", step, " from the storage paths: ", chunks, " chunks");
  if (replayed > 0) {
    out += text(", ", replayed, " of them updated again from their gradients, up to ", replayed_steps,
                replayed_steps == 1 ? " time" : " times");
  }
  const auto steps_until = [&](std::uint64_t last) {
    return text(last > step + 1 ? text("steps ", step + 1, " to ") : std::string("step "), last);
  };
  if (cut_off) out += text(", without ", steps_until(*cut_off), ", which another process did not have");
  if (lost_until) {
    out += text(", without ", steps_until(*lost_until), ", which had been durable: the storage paths went back to an ",
                "earlier state, or lost what they had said was flushed");
  }
  out += text(", in ", std::round(seconds * 10) / 10, " s");
  if (!damage.empty()) {
    out += text("; ", damage.size(), " damaged records were passed over, the first is ", damage.front());
  }
  return out;
}

}  // namespace spillway::execute
