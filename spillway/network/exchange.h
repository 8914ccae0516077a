// A transfer that its caller waits for.
#pragma once

#include <vector>

#include "spillway/network/port.h"

namespace spillway::network {

/// Begins a transfer and waits until it has ended. Throws what failed.
void exchange(Port& port, std::vector<Message> messages);

}  // namespace spillway::network
