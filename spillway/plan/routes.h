// Who sends what to whom in a step of several processes. What crosses between machines crosses once: inside a machine
// one process, the relay of a chunk, sends on the weights that came for all of them, and adds the sums of gradients
// that all of them have made before one sum for each maximal subtree of the machine's virtual ranks leaves. The relays
// of a machine are as many as its processes, each for the chunks of owners that have its place on their machines.
//
//   weights:    owner --gather--> relay of each other machine;  owner and relays --local_gather--> their machines
//   gradients:  others of each machine --local_scatter--> owner and relays;  relays --scatter--> owner
//   refits:     as weights, from the process that has made them
//
// A world with one process on each machine has no local hops, and one on a single machine has no others. Every process
// knows all of it from the schedule and the sizes of world and machines.
#pragma once

#include <cstddef>

#include "spillway/plan/kinds.h"
#include "spillway/state/ownership.h"

namespace spillway::plan {

/// True if an operation of the network moves bytes between machines; else inside each.
[[nodiscard]] constexpr bool crosses(Op op) noexcept {
  return op == Op::gather || op == Op::scatter;
}
/// True if it brings weights; else sums of gradients.
[[nodiscard]] constexpr bool gathers(Op op) noexcept {
  return op == Op::gather || op == Op::local_gather;
}
/// True if a world has such hops at all.
[[nodiscard]] constexpr bool has_hops(Op op, const state::World& world) noexcept {
  return crosses(op) ? world.machines() > 1 : world.local > 1;
}

/// The process of a machine that has to do with other machines where the chunks of `owner` are concerned.
[[nodiscard]] constexpr std::size_t relay_of(const state::World& world, std::size_t machine,
                                             std::size_t owner) noexcept {
  return machine * world.local + owner % world.local;
}

/// Calls body(peer, sends) for each hop of this process's, in the order of peers, of a chunk that `owner` has.
template <class Body>
void each_hop(Op op, const state::World& world, std::size_t owner, const Body& body) {
  const auto here = world.machine_of(world.rank), home = world.machine_of(owner);
  const auto relay = relay_of(world, here, owner);
  const bool gives = gathers(op);  // the owner, and a relay to its machine
  if (crosses(op)) {
    if (world.rank != relay) return;
    if (here != home) return body(owner, !gives);
    for (std::size_t machine = 0; machine < world.machines(); ++machine) {
      if (machine != home) body(relay_of(world, machine, owner), gives);
    }
    return;
  }
  if (world.rank != relay) return body(relay, !gives);
  for (auto peer = here * world.local; peer < (here + 1) * world.local; ++peer) {
    if (peer != relay) body(peer, gives);
  }
}

}  // namespace spillway::plan
