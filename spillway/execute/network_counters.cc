#include "spillway/execute/counters.h"

namespace spillway::execute {

std::optional<NetworkCounters> network_counters(const network::CountingPort* network) {
  if (network == nullptr) return std::nullopt;
  const auto moved = network->traffic();
  return NetworkCounters{moved.sent, moved.received, {moved.sent_between, moved.received_between}};
}

}  // namespace spillway::execute
