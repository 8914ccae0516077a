// Transfers that their caller waits for.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "spillway/network/port.h"

namespace spillway::network {

/// Begins a transfer and waits until it has ended. Throws what failed.
void exchange(Port& port, std::vector<Message> messages);

/// Sends bytes to each of these processes, or takes them from it. Nothing where there are no bytes or no peers.
void move_bytes(Port& port, std::span<const std::size_t> peers, bool sends, std::span<std::byte> bytes);

/// Every rank calls it: all of them have the bytes of rank `from`. Throws what failed.
void broadcast(Port& port, std::size_t from, std::span<std::byte> bytes);

}  // namespace spillway::network
