// Kinds of tasks: operation, lane and object. These tables are the only list of operations, lanes, tiers, objects and
// passes. The schedule, the simulation, the executor, timelines and the page of a run read them. No code compares a
// kind with a name (scripts/check_kinds.py).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "spillway/plan/description.h"

namespace spillway::plan {

enum class Op : std::uint8_t {
  compute,   ///< a pass of a block, by the caller
  update,    ///< of a chunk
  refit,     ///< auxiliary fields of a chunk, in the background, from a gradient that a pass has left
  transfer,  ///< of bytes between a storage path or a device and the host's memory
  // Between processes (routes.h), in the order of a pass:
  gather,         ///< weights of a pass, from the processes that have them, to other machines; auxiliary fields of a
                  ///< chunk, from the process that refits them
  local_gather,   ///< the same inside each machine
  local_scatter,  ///< sums of a pass's gradients, to the processes that have their chunks, inside each machine
  scatter,        ///< the same between machines
  apply,          ///< in one process: the change of a chunk that the host has updated, to the copy on a device
};

/// A port of the machine: it serves the tasks that are ready, the earliest deadline first.
enum class Lane : std::uint8_t { compute, update, read, write, to_device, from_device, device_update, refit, network };

/// Server of a lane.
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
/// A value of each lane.
template <class Value>
struct ByLane {
  std::array<Value, kLanes.size()> values{};

  [[nodiscard]] Value& operator[](Lane lane) noexcept { return values[static_cast<std::size_t>(lane)]; }
  [[nodiscard]] const Value& operator[](Lane lane) const noexcept { return values[static_cast<std::size_t>(lane)]; }
};

/// The name of a lane in timelines and stalls: "read", "to_device".
[[nodiscard]] constexpr const char* name_of(Lane lane) noexcept {
  return traits(lane).name;
}
/// Between memory and the storage paths.
[[nodiscard]] constexpr bool is_path(Lane lane) noexcept {
  return traits(lane).server == Server::paths;
}
/// From a storage path.
[[nodiscard]] constexpr bool is_read(Lane lane) noexcept {
  return is_path(lane) && traits(lane).fetches;
}
/// Between the host's memory and a device's.
[[nodiscard]] constexpr bool is_link(Lane lane) noexcept {
  return traits(lane).server == Server::link;
}
/// True if a device's streams serve it, so that its tasks may follow work that was issued there and has not ended.
[[nodiscard]] constexpr bool is_of_device(Lane lane) noexcept {
  return is_link(lane) || traits(lane).server == Server::device;
}

/// Kind of a tier: the storage paths together, memory of the host or of a device, or the other processes of the run.
enum class TierKind : std::uint8_t { storage, host, device, peer };

struct TierTraits {
  bool in_memory;  ///< what lives there is at hand, in an arena, and does not come from a path
  bool on_host;    ///< the host's CPUs work on it there, on the node that it lies on
  bool on_device;  ///< it is copied over a link to be there, and a device works on it
};

inline constexpr std::array<TierTraits, 4> kTiers = {{
    {false, false, false},
    {true, true, false},
    {true, false, true},
    {false, false, false},
}};

[[nodiscard]] constexpr const TierTraits& traits(TierKind tier) noexcept {
  return kTiers[static_cast<std::size_t>(tier)];
}

/// Kind of a task's object.
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
  features,         ///< of images
  change,           ///< of a reduced chunk, in the reduced shape, with the auxiliary fields that it goes through
};

/// How timelines tell one object of a kind from another.
enum class Numbered : std::uint8_t { by_chunk, by_layer, by_number, alone };

struct ObjectTraits {
  const char* name;    ///< in timelines, behind what the lane does
  const char* colour;  ///< a variable of the report's page
  Numbered numbered;
  std::uint8_t lanes;           ///< that move it: bit n for lane n
  bool of_refit = false;        ///< it moves something only where a pass has left a background refit
  const char* words = nullptr;  ///< of what paths keep: what messages call it, before what it is of
  Bytes (*bytes)(const state::UpdateRule& rule, const state::Chunk& chunk) = nullptr;  ///< of a field group's
  bool of_gradient = false;                ///< an update takes it; a durable step has left it on the paths
  std::optional<ObjectKind> other_part{};  ///< of a snapshot of its chunk; none: it is no part of one
};

[[nodiscard]] constexpr std::uint8_t lane_bits(std::initializer_list<Lane> lanes) noexcept {
  unsigned out = 0;
  for (const auto lane : lanes) out |= 1U << static_cast<unsigned>(lane);
  return static_cast<std::uint8_t>(out);
}
inline constexpr std::uint8_t kEveryTransfer = lane_bits({Lane::read, Lane::write, Lane::to_device, Lane::from_device});

inline constexpr std::array<ObjectTraits, 13> kObjects = {{
    {"pass", "c1", Numbered::by_number, 0},
    {"chunk", "c4", Numbered::by_chunk, 0},
    {.name = "weight",
     .colour = "c5",
     .numbered = Numbered::by_chunk,
     .lanes = kEveryTransfer,
     .words = "weights",
     .bytes = state::weight_bytes,
     .other_part = ObjectKind::state},
    {.name = "state",
     .colour = "c6",
     .numbered = Numbered::by_chunk,
     .lanes = kEveryTransfer,
     .words = "remainder and moments",
     .bytes = state::state_bytes,
     .other_part = ObjectKind::weight},
    {.name = "grad",
     .colour = "c7",
     .numbered = Numbered::by_chunk,
     .lanes = kEveryTransfer,
     .words = "gradient",
     .bytes = state::grad_bytes,
     .of_gradient = true},
    {"activation", "c8", Numbered::by_layer, kEveryTransfer, false, "input of layer"},
    {.name = "rows",
     .colour = "c7",
     .numbered = Numbered::by_number,
     .lanes = lane_bits({Lane::write}),
     .words = "gradient of the embedding's rows, part",
     .of_gradient = true},
    {"hidden", "c6", Numbered::alone, lane_bits({Lane::from_device})},
    {"record", "c7", Numbered::by_chunk, lane_bits({Lane::from_device}), true},
    {"projectors", "c2", Numbered::by_chunk, lane_bits({Lane::to_device}), true},
    {"saved activations", "c8", Numbered::by_layer, kEveryTransfer, false, "saved activations of layer"},
    {"vision features", "c8", Numbered::alone, kEveryTransfer, false, "features of images"},
    {"change", "c4", Numbered::by_chunk, lane_bits({Lane::to_device})},
}};

[[nodiscard]] constexpr const ObjectTraits& traits(ObjectKind kind) noexcept {
  return kObjects[static_cast<std::size_t>(kind)];
}

/// Purpose of a task; an instance runs the phases that apply to it and skips the others.
enum class Phase : std::uint8_t {
  update,     ///< needs an update pending
  forward,    ///< weights for the forward pass (and the update before it), forward passes
  head_loss,  ///< pass 1 over the head
  backward,   ///< pass 2, backward, gradients, boundary activations
  ahead,      ///< first reads for the next step's updates
  early,      ///< updates during backward, before the step is decided
};

/// A pass of a block over all micro-batches.
enum class PassKind : std::uint8_t {
  embedding,           ///< gather the rows of one slice
  forward,             ///< one layer block
  head_loss,           ///< pass 1 over one slice of the head
  head_gradient,       ///< pass 2
  backward,            ///< one layer block, recomputed
  embedding_backward,  ///< scatter the rows' gradients
};

/// Seconds of a pass; for a layer, of one of average size. Null if it takes no time of its own, or is of no layer.
struct PassRates {
  double Rates::*seconds = nullptr;
  double Rates::*kept = nullptr;   ///< where the layer keeps what autograd saves
  double Rates::*last = nullptr;   ///< of the last layer
  double Rates::*entry = nullptr;  ///< of the first layer, beside those of a layer
};

struct PassTraits {
  const char* name;  ///< in timelines
  const char* key;   ///< to who computes it
  const char* colour;
  Phase phase;            ///< those that differentiate are of the phase `backward`
  bool of_layer;          ///< of all chunks of a layer; else of one of a table
  bool of_rows;           ///< of some rows of a table, on the host; else its block's weights are multiplied by
  unsigned weight_reads;  ///< times that it reads its block's weights, for each micro-batch
  PassRates rates = {};
};

inline constexpr std::array<PassTraits, 6> kPasses = {{
    {"embedding", "embedding", "c1", Phase::forward, false, true, 0},
    {"forward",
     "forward",
     "c1",
     Phase::forward,
     true,
     false,
     1,
     {&Rates::forward, &Rates::kept_forward, &Rates::tail_forward, &Rates::entry_forward}},
    {"head loss", "head_loss", "c2", Phase::head_loss, false, false, 1, {&Rates::head_loss}},
    {"head gradient", "head_gradient", "c2", Phase::backward, false, false, 1, {&Rates::head_gradient}},
    {"backward",
     "backward",
     "c3",
     Phase::backward,
     true,
     false,
     3,
     {&Rates::backward, &Rates::kept_backward, &Rates::tail_backward, &Rates::entry_backward}},
    {"embedding backward", "embedding_backward", "c3", Phase::backward, false, true, 0, {&Rates::between}},
}};

[[nodiscard]] constexpr const PassTraits& traits(PassKind kind) noexcept {
  return kPasses[static_cast<std::size_t>(kind)];
}

/// Prefix of a task's name in a timeline, and its colour.
struct KindLabel {
  std::string name;
  const char* colour;
};
/// The label of a task that is not a pass.
[[nodiscard]] KindLabel label_of(Op op, Lane lane, ObjectKind kind);
/// The labels of every kind that a timeline may show.
[[nodiscard]] std::vector<KindLabel> kind_labels();

}  // namespace spillway::plan
