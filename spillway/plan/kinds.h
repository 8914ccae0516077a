// What a task does, on which lane, and to what. These tables are the only list of operations, lanes, objects and
// passes: the schedule, the simulation, the executor, timelines and the page of a run take from them what they know of
// a kind.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace spillway::plan {

enum class Op : std::uint8_t {
  compute,   ///< a pass of a block, by the caller
  update,    ///< of a chunk
  refit,     ///< auxiliary fields of a chunk, in the background, from a gradient that a pass has left
  transfer,  ///< of bytes between a storage path or a device and the host's memory
  // Between processes (routes.h), in the order of a pass:
  gather,         ///< weights of a pass, from the processes that have them, to other machines
  local_gather,   ///< the same inside each machine
  local_scatter,  ///< sums of a pass's gradients, to the processes that have their chunks, inside each machine
  scatter,        ///< the same between machines
};

/// A port of the machine: it serves the tasks that are ready, the earliest deadline first.
enum class Lane : std::uint8_t { compute, update, read, write, to_device, from_device, device_update, refit, network };

/// What serves a lane.
enum class Server : std::uint8_t {
  caller,   ///< of the engine
  cores,    ///< threads of the host
  paths,    ///< the storage paths, together
  link,     ///< one direction between the host and a device
  device,   ///< a stream of the device
  network,  ///< the other processes of the run, in one order
};

struct LaneTraits {
  const char* name;   ///< in timelines, waits and bottlenecks
  const char* moves;  ///< what a transfer there does, as timelines say it; null: there are none
  Server server;
  bool fetches;  ///< a transfer brings bytes towards where passes compute; else it takes them from there
};

inline constexpr std::array<LaneTraits, 9> kLanes = {{
    {"compute", nullptr, Server::caller, false},
    {"update", nullptr, Server::cores, false},
    {"read", "read", Server::paths, true},
    {"write", "write", Server::paths, false},
    {"to_device", "upload", Server::link, true},
    {"from_device", "download", Server::link, false},
    {"device_update", nullptr, Server::device, false},
    {"fit", nullptr, Server::cores, false},
    {"network", nullptr, Server::network, false},
}};

[[nodiscard]] constexpr const LaneTraits& traits(Lane lane) noexcept {
  return kLanes[static_cast<std::size_t>(lane)];
}
/// The name of a lane in timelines and stalls: "read", "to_device".
[[nodiscard]] constexpr const char* name_of(Lane lane) noexcept {
  return traits(lane).name;
}
/// Between memory and the storage paths.
[[nodiscard]] constexpr bool is_path(Lane lane) noexcept {
  return traits(lane).server == Server::paths;
}
/// Between the host's memory and a device's.
[[nodiscard]] constexpr bool is_link(Lane lane) noexcept {
  return traits(lane).server == Server::link;
}
/// Whether a device's streams serve it, so that its tasks may follow what was issued there and has not ended.
[[nodiscard]] constexpr bool is_of_device(Lane lane) noexcept {
  return is_link(lane) || traits(lane).server == Server::device;
}

/// What a task is about.
enum class ObjectKind : std::uint8_t {
  pass,             ///< of a block: an index into Schedule::passes
  chunk,            ///< all that an update changes of it
  weight,           ///< of a chunk, as are the next two
  state,            ///< remainder and moments
  gradient,         ///< of what is reduced: with its auxiliary fields
  boundary,         ///< activation between two layers, by boundary
  sparse_gradient,  ///< of an embedding: its rows, by part
  hidden_gradient,  ///< of the hidden states that the embedding has made; there is one
  refit_record,     ///< of a chunk, for its refit
  auxiliary,        ///< fields of a chunk, but the record
  saved,            ///< by autograd of a layer, by layer
};

/// How timelines tell one object of a kind from another.
enum class Numbered : std::uint8_t { by_chunk, by_number, alone };

struct ObjectTraits {
  const char* name;    ///< in timelines, behind what the lane does
  const char* colour;  ///< a variable of the report's page
  Numbered numbered;
  std::uint8_t lanes;             ///< that move it: bit n for lane n
  bool of_refit = false;          ///< it moves something only where a pass has left a background refit
  const char* on_path = nullptr;  ///< of an activation: what messages call one, before its number
};

[[nodiscard]] constexpr std::uint8_t lane_bits(std::initializer_list<Lane> lanes) noexcept {
  unsigned out = 0;
  for (const auto lane : lanes) out |= 1U << static_cast<unsigned>(lane);
  return static_cast<std::uint8_t>(out);
}
inline constexpr std::uint8_t kEveryTransfer = lane_bits({Lane::read, Lane::write, Lane::to_device, Lane::from_device});

inline constexpr std::array<ObjectTraits, 11> kObjects = {{
    {"pass", "c1", Numbered::by_number, 0},
    {"chunk", "c4", Numbered::by_chunk, 0},
    {"weight", "c5", Numbered::by_chunk, kEveryTransfer},
    {"state", "c6", Numbered::by_chunk, kEveryTransfer},
    {"grad", "c7", Numbered::by_chunk, kEveryTransfer},
    {"activation", "c8", Numbered::by_number, kEveryTransfer, false, "input of layer"},
    {"rows", "c7", Numbered::by_number, lane_bits({Lane::write})},
    {"hidden", "c6", Numbered::alone, lane_bits({Lane::from_device})},
    {"record", "c7", Numbered::by_chunk, lane_bits({Lane::from_device}), true},
    {"projectors", "c2", Numbered::by_chunk, lane_bits({Lane::to_device}), true},
    {"saved activations", "c8", Numbered::by_number, kEveryTransfer, false, "saved activations of layer"},
}};

[[nodiscard]] constexpr const ObjectTraits& traits(ObjectKind kind) noexcept {
  return kObjects[static_cast<std::size_t>(kind)];
}

/// A pass of a block over all micro-batches.
enum class PassKind : std::uint8_t {
  embedding,           ///< gather the rows of one slice
  forward,             ///< one layer block
  head_loss,           ///< pass 1 over one slice of the head
  head_gradient,       ///< pass 2
  backward,            ///< one layer block, recomputed
  embedding_backward,  ///< scatter the rows' gradients
};

struct PassTraits {
  const char* name;
  const char* colour;
  unsigned weight_reads;  ///< times that it reads its block's weights, for each micro-batch
};

inline constexpr std::array<PassTraits, 6> kPasses = {{
    {"embedding", "c1", 0},
    {"forward", "c1", 1},
    {"head loss", "c2", 1},
    {"head gradient", "c2", 1},
    {"backward", "c3", 3},
    {"embedding backward", "c3", 0},
}};

[[nodiscard]] constexpr const PassTraits& traits(PassKind kind) noexcept {
  return kPasses[static_cast<std::size_t>(kind)];
}

/// What the name of a task in a timeline begins with, and its colour.
struct KindLabel {
  std::string name;
  const char* colour;
};
/// The label of a task that is not a pass.
[[nodiscard]] KindLabel label_of(Op op, Lane lane, ObjectKind kind);
/// The labels of every kind that a timeline may show.
[[nodiscard]] std::vector<KindLabel> kind_labels();

}  // namespace spillway::plan
