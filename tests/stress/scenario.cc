#include "tests/stress/scenario.h"

#include <array>
#include <cerrno>

#include "spillway/plan/room.h"
#include "tests/contract/lives.h"
#include "tests/contract/on_device.h"

namespace spillway::stress {
namespace {

using plan::Durability;
using plan::test::Shape;

Random random_of(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::seed_seq mixed{seed, seed >> 32, a, b, c};
  return Random(mixed);
}

template <class T, std::size_t N>
T pick(Random& random, const std::array<T, N>& of) {
  return of[random() % N];
}

Shape draw_shape(Random& random) {
  using kernels::Optimizer;
  using state::ComputeType;
  using state::StateFormat;
  Shape out;
  out.layers = 1 + static_cast<std::int64_t>(random() % 4);
  out.head = !one_in(random, 5);
  out.embedding = !one_in(random, 4);
  out.tied = one_in(random, 2);
  out.tokens = 16;
  out.micro_batches = 1 + random() % 2;
  out.chunk_elements = one_in(random, 2) ? 8192 : 4096;
  out.format = pick(random, std::array{StateFormat::exact, StateFormat::exact, StateFormat::bf16, StateFormat::int8});
  out.optimizer = pick(random, std::array{&optim::adamw, &optim::adamw, &optim::adam, &optim::lion, &optim::sgd});
  out.type = one_in(random, 5) ? ComputeType::fp32 : ComputeType::bf16;
  if (out.type == ComputeType::bf16 && one_in(random, 4)) out.compute = ComputeType::fp32;
  if (one_in(random, 4)) out.frozen = plan::test::kFrozenParts[random() % plan::test::kFrozenParts.size()];
  if (one_in(random, 5)) out.fp32 = "norm|up";
  if (one_in(random, 4)) out.subspace = one_in(random, 2) ? "up|down" : "down";
  return out;
}

/// Whether an engine in memory takes the model.
bool serves(const Shape& shape) {
  try {
    const auto description = plan::test::describe(shape);
    if (description.layout().trainable_parameters() == 0) return false;
    Settings settings;
    settings.budget.dram = 4 * GiB;
    const Engine engine(description, settings);
    return true;
  } catch (const Error&) {
    return false;
  }
}

StepUpdate draw_update(Random& random, const Shape& shape) {
  StepUpdate out{.learning_rate = 1e-2, .weight_decay = 0.1, .max_grad_norm = 1};
  if (one_in(random, 2)) out.max_grad_norm = 0;
  if (!shape.subspace.empty()) out.weight_decay = 0;
  if (shape.optimizer == &optim::lion || shape.optimizer == &optim::sgd) {
    out.learning_rate = 1e-3;
  }
  return out;
}

std::optional<Outage> draw_outage(Random& random, const Scenario& scenario) {
  if (!one_in(random, 4)) return std::nullopt;
  Outage out{.path = random() % scenario.paths};
  const auto kind = random() % 8;
  out.operation = kind == 0 ? sys::Operation::sync : kind == 1 ? sys::Operation::read : sys::Operation::write;
  out.from = one_in(random, 3) ? 0 : random() % 400;  // of every third drive from the first on
  if (out.operation == sys::Operation::sync) out.from = random() % 40;
  out.error = one_in(random, 2) ? EIO : ENOSPC;
  return out;
}

/// Every other round has honest drives.
Swarm draw_swarm(Random random) {
  Swarm out;
  for (bool* it : {&out.kills, &out.power_cuts, &out.outages, &out.interruptions, &out.pairs, &out.devices,
                   &out.returns, &out.reads}) {
    *it = !one_in(random, 3);
  }
  if (one_in(random, 2)) return out;
  for (bool* it : {&out.false_writes, &out.false_reads, &out.false_flushes, &out.old_volumes, &out.old_checkpoints,
                   &out.old_superblocks}) {
    *it = one_in(random, 2);
  }
  return out;
}

/// Late writes are those of rings below which no power is cut.
std::optional<Deceit> draw_deceit(Random random, const Scenario& scenario, bool power_cut) {
  const auto& swarm = scenario.swarm;
  if (!(swarm.false_writes || swarm.false_reads) || !one_in(random, 2)) return std::nullopt;
  Deceit out;
  const bool reads = swarm.false_reads && (!swarm.false_writes || one_in(random, 3));
  out.operation = reads ? sys::Operation::read : sys::Operation::write;
  out.lie = pick(random, std::array{sys::Lie::lost, sys::Lie::misdirected, sys::Lie::late});
  if (out.lie == sys::Lie::late && (reads || power_cut)) out.lie = sys::Lie::lost;
  out.part =
      pick(random, std::array{Part::commits, Part::commits, Part::records, Part::metadata, Part::data, Part::all});
  if (one_in(random, 2)) out.path = random() % scenario.paths;
  out.skip = random() % (one_in(random, 2) ? 4 : 60);
  out.times = one_in(random, 3) ? 1000 : 1 + random() % 6;
  out.distance = out.lie == sys::Lie::late ? random() % 30 : 1 + random() % 40;
  return out;
}

}  // namespace

std::string Swarm::words() const {
  std::string out;
  const auto add = [&](bool is_on, const char* name) {
    if (is_on) out += text(out.empty() ? "" : ", ", name);
  };
  add(kills, "kills");
  add(power_cuts, "power cuts");
  add(outages, "outages");
  add(interruptions, "interruptions");
  add(pairs, "pairs");
  add(devices, "devices");
  add(returns, "returns");
  add(reads, "reads");
  add(false_writes, "false writes");
  add(false_reads, "false reads");
  add(false_flushes, "false flushes");
  add(old_volumes, "old volumes");
  add(old_checkpoints, "old checkpoints");
  add(old_superblocks, "old superblocks");
  return out.empty() ? "nothing" : out;
}

std::string Scenario::words() const {
  const auto kind = [](const std::string& expression) { return expression.empty() ? "none" : expression; };
  return text(shape.layers, " layers", shape.embedding ? ", embedding" : "", shape.head ? ", head" : "",
              shape.tied ? ", tied" : "", ", chunks of ", shape.chunk_elements, ", ", state::name_of(shape.type),
              shape.compute ? ", computes in fp32" : "", ", ", shape.optimizer->name, ", state ",
              state::name_of(shape.format), ", frozen ", kind(shape.frozen), ", wide ", kind(shape.fp32), ", subspace ",
              kind(shape.subspace), ", clipping ", update.max_grad_norm, "; durability ", plan::name_of(durability),
              ", ", paths, " paths ", in_memory ? "in memory" : "on disk", ", ", steps,
              " steps; may happen: ", swarm.words());
}

Scenario draw_scenario(std::uint64_t seed, std::uint64_t round) {
  auto random = random_of(seed, 1, round, 0);
  Scenario out;
  do {
    out.shape = draw_shape(random);
  } while (!serves(out.shape));
  out.update = draw_update(random, out.shape);
  out.durability =
      pick(random, std::array{Durability::step, Durability::step, Durability::step, Durability::step, Durability::step,
                              Durability::checkpoint, Durability::checkpoint, Durability::none});
  out.paths = 1 + random() % 3;
  out.steps = 8 + random() % 12;
  out.in_memory = !one_in(random, 4);
  out.swarm = draw_swarm(random_of(seed, 5, round, 0));
  return out;
}

StepDraw draw_step(const Scenario& scenario, std::uint64_t seed, std::uint64_t line, std::uint64_t step) {
  auto random = random_of(seed, 2, line, step);
  StepDraw out{.inputs = random() % 1'000'000, .poisoned = one_in(random, 8), .update = scenario.update};
  out.update.learning_rate *= 1 + static_cast<double>(random() % 4) / 4;
  return out;
}

const char* name_of(Opening opening) {
  static constexpr std::array kNames = {"goes on", "begins anew", "goes back", "verifies", "is read"};
  return kNames[static_cast<std::size_t>(opening)];
}

std::string Life::words() const {
  auto out = text(name_of(opening), ", at most ", steps, " steps");
  if (ending == Ending::killed) out += text(", killed at event ", event);
  if (ending == Ending::power_cut) out += text(", without power after event ", event);
  if (kill_after) out += text(", killed after ", *kill_after, " of a life");
  if (outage) {
    const char* const what = outage->operation == sys::Operation::sync   ? "flush"
                             : outage->operation == sys::Operation::read ? "read"
                                                                         : "write";
    out += text(", path ", outage->path, " fails every ", what, " from number ", outage->from, " on with errno ",
                outage->error);
  }
  if (deceit) {
    static constexpr std::array kLies = {"lost", "misdirected", "late", "stale"};
    static constexpr std::array kParts = {"commits", "records", "metadata", "data", "the volume"};
    out += text(", ", deceit->path ? text("path ", *deceit->path) : std::string("every path"), " lies about ",
                deceit->times, deceit->operation == sys::Operation::read ? " reads" : " writes", " of ",
                kParts[static_cast<std::size_t>(deceit->part)], " from number ", deceit->skip,
                " on: ", kLies[static_cast<std::size_t>(deceit->lie)], " (", deceit->distance, ")");
  }
  if (first_false_flush) out += text(", flushes are false from number ", *first_false_flush, " on");
  if (interrupt_one_in > 0) out += text(", 1 piece in ", interrupt_one_in, " interrupted or cut short");
  return out + (device ? ", with a device" : "") + (threads_move ? ", thread ring" : "");
}

namespace {

void restrict_to(const Swarm& swarm, Life& life) {
  if (!swarm.kills) life.kill_after.reset();
  if (!swarm.kills && life.ending == Ending::killed) life.ending = Ending::closed;
  // False flushes show where the power is cut.
  if (swarm.false_flushes && life.ending == Ending::killed) life.ending = Ending::power_cut;
  if (!swarm.power_cuts && !swarm.false_flushes && life.ending == Ending::power_cut) life.ending = Ending::closed;
  if (!swarm.outages) life.outage.reset();
  if (!swarm.interruptions) life.interrupt_one_in = 0;
  if (!swarm.devices) life.device = false;
  const bool returns = life.opening == Opening::anew || life.opening == Opening::back;
  const bool reads = life.opening == Opening::verify || life.opening == Opening::read;
  if ((returns && !swarm.returns) || (reads && !swarm.reads)) life.opening = Opening::go_on;
}

}  // namespace

Life draw_life(const Scenario& scenario, std::uint64_t seed, std::uint64_t round, std::uint64_t life) {
  auto random = random_of(seed, 3, round, life);
  Life out;
  const auto kind = random() % 16;
  out.opening = kind == 0   ? Opening::anew
                : kind < 4  ? Opening::back
                : kind == 4 ? Opening::verify
                : kind < 7  ? Opening::read
                            : Opening::go_on;
  const auto end = random() % 8;
  if (end < 2) out.ending = Ending::killed;
  if (end == 2) out.ending = Ending::power_cut;
  if (end >= 3 && end < 6) out.kill_after = static_cast<double>(random() % 1000) / 1000;
  out.event = 1 + random() % (one_in(random, 2) ? 60 : 1500);
  out.steps = 1 + random() % 8;
  out.outage = draw_outage(random, scenario);
  out.interrupt_one_in = one_in(random, 3) ? 5 + random() % 60 : 0;
  out.threads_move = one_in(random, 3);
  out.device = one_in(random, 4);
  out.save_one_in = 2 + random() % 5;
  out.seed = random();
  restrict_to(scenario.swarm, out);
  out.deceit = draw_deceit(random_of(seed, 6, round, life), scenario, out.ending == Ending::power_cut);
  if (scenario.swarm.false_flushes && out.ending == Ending::power_cut) out.first_false_flush = out.event % 30;
  return out;
}

Settings draw_settings(const Scenario& scenario, const Life& life, const std::filesystem::path& where) {
  auto random = random_of(life.seed, 4, 0, 0);
  std::mt19937 small(static_cast<unsigned>(random()));
  auto placement = test::random_placement(small);
  // At least some of it is on the paths, so that there is something to leave.
  const bool keeps = scenario.durability != Durability::none;
  if (!keeps) placement.weight = std::min(*placement.weight, 0.5);
  auto out = test::DurableRun::settings(where, scenario.paths, placement, scenario.durability);
  out.storage.keep = out.budget.resumes = keeps;
  out.budget.checkpoints = 4;
  out.threads = 1 + static_cast<unsigned>(random() % 3);
  test::use_fake_nodes(out, small);
  if (life.device) {
    out.budget.nodes.clear();
    out.rates.nodes.clear();
    out.nodes.clear();
    const auto& it = scenario.shape;
    const bool updates =
        it.optimizer == &optim::adamw && it.format == state::StateFormat::exact && it.type == state::ComputeType::bf16;
    const double resident = one_in(random, 2) ? 0 : 0.5, updated = one_in(random, 2) ? 1 : 0.4;
    out.budget.device = test::tier(updates ? resident : 0, updates ? updated : 0, static_cast<double>(random() % 2));
    test::delay_copies(out, random());
  } else if (one_in(random, 3)) {
    out.budget.update_schedule = plan::Updates::early;
    out.budget.clipping = scenario.update.max_grad_norm > 0;
    out.budget.speculative_updates = true;
  }
  if (one_in(random, 4) && !life.device) {  // a limit; what does not fit is given more by the process
    out.budget.placement = {};
    if (!keeps) out.budget.placement.weight = 0.5;
    out.budget.nodes.clear();
    out.rates.nodes.clear();
    out.nodes.clear();
    out.budget.dram = plan::kEngineBytes + (1 + random() % 16) * 128 * KiB;
  }
  return out;
}

}  // namespace spillway::stress
