#include "spillway/machine/saturation.h"

#include <algorithm>

namespace spillway::machine {
namespace {

constexpr double kFaster = 1.05;

}  // namespace

Saturation saturate(unsigned most, const std::function<double(unsigned threads)>& rate) {
  Saturation out;
  for (unsigned threads = 1;; threads = std::min(2 * threads, most)) {
    const double found = rate(threads);
    if (threads == 1) out.thread = found;
    if (found <= out.most * kFaster) break;
    out.most = found;
    out.threads = threads;
    if (threads >= most) break;
  }
  return out;
}

}  // namespace spillway::machine
