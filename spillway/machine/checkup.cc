#include "spillway/machine/checkup.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include "spillway/base/error.h"
#include "spillway/device/cuda_driver.h"
#include "spillway/storage/probe.h"
#include "spillway/sys/file.h"
#include "spillway/sys/mapping.h"
#include "spillway/sys/nodes.h"
#include "spillway/sys/numa.h"
#include "spillway/sys/process.h"
#include "spillway/sys/ring.h"

namespace spillway::machine {
namespace {

using State = Finding::State;

constexpr Bytes kRegistered = 64 * MiB;  // beyond the usual limit of locked memory (8 MiB)

sys::File scratch_file() {
  return sys::nameless_file(std::filesystem::temp_directory_path());
}

/// What a look says, or the reason why there was none.
template <class Look>
Finding found(std::string what, State otherwise, const Look& look) {
  try {
    Finding out = look();
    out.what = std::move(what);
    return out;
  } catch (const Error& error) {
    return {std::move(what), otherwise, error.what()};
  } catch (const std::system_error& error) {
    return {std::move(what), otherwise, error.what()};
  }
}

Finding look_at_ring() {
  const auto scratch = scratch_file();
  (void)sys::make_uring(scratch, 4);
  return {.words = "transfers are queued in the kernel"};
}

Finding look_at_registration() {
  const auto scratch = scratch_file();
  const sys::Mapping memory(kRegistered);
  const auto refusal = sys::make_uring(scratch, 4)->register_memory(memory.span());
  if (refusal.empty()) return {.words = "drives read and write memory that is registered once"};
  return {.state = State::lesser,
          .words = text(human(kRegistered), " were refused: ", refusal,
                        "; transfers take more of the CPUs. Raise the limit of locked memory (ulimit -l)")};
}

Finding look_at_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string words;
  std::getline(file, words);
  if (words.empty()) return {.state = State::lesser, .words = "the kernel has none; memory is of pages of 4 KiB"};
  const auto begin = words.find('[');
  const auto chosen = words.substr(begin + 1, words.find(']') - begin - 1);
  if (chosen != "never") return {.words = text("transparent huge pages: ", chosen)};
  return {.state = State::lesser,
          .words = "transparent huge pages: never; echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"};
}

Finding look_at_memory() {
  const auto facts = sys::dram_facts();
  return {.words = text(human(facts.available), " of ", human(facts.total), " can be taken",
                        facts.group ? ", by the cgroup's limit" : "")};
}

std::string node_words(const sys::Node& node) {
  const std::vector<int> cpus(node.cpus.begin(), node.cpus.end());
  return text("node ", node.id, ": ", human(node.available), " of ", human(node.total), " free, ",
              cpus.empty() ? "no CPUs" : "CPUs " + sys::format_list(cpus),
              node.allowed ? "" : ", not permitted to this process");
}

Finding look_at_nodes() {
  const auto nodes = sys::nodes();
  std::string words;
  for (const auto& node : nodes) words += text(words.empty() ? "" : "; ", node_words(node));
  return {.words = words};
}

Finding look_at_placing() {
  const auto& refusal = sys::numa_refusal();
  if (refusal.empty()) return {.words = "memory can be placed on a node and moved, and the kernel says where it lies"};
  const bool one = std::ranges::count_if(sys::nodes(), &sys::Node::has_memory) == 1;
  return {.state = one ? State::lesser : State::missing, .words = refusal + (one ? " (there is one node)" : "")};
}

Finding look_at_gpus() {
  const device::CudaDriver driver;
  Finding out{.words = text("driver for CUDA ", driver.version() / 1000, ".", driver.version() % 1000 / 10)};
  for (const auto& gpu : device::gpus(driver)) {
    out.words += text(", cuda:", gpu.index, " ", gpu.name, " with ", human(gpu.memory), " at ", gpu.bus);
    if (gpu.node) out.words += text(" by NUMA node ", *gpu.node);
  }
  return out;
}

Finding look_at_place(const std::filesystem::path& place) {
  const storage::Probe probe = storage::probe(place);
  Finding out{.words = text(probe.file_system, ", ", human(probe.free), " free, ",
                            probe.direct ? text("O_DIRECT in units of ", probe.offset_alignment, " bytes")
                                         : text("no O_DIRECT: ", probe.direct_refusal))};
  const auto notes = storage::remarks(probe);
  for (const auto& note : notes) out.words += text("; it ", note);
  if (!notes.empty()) out.state = State::lesser;
  return out;
}

}  // namespace

std::vector<Finding> checkup(std::span<const std::filesystem::path> places) {
  std::vector<Finding> out;
  out.push_back(found("io_uring", State::lesser, look_at_ring));
  if (out.back().state != State::good) out.back().words += "; threads do the transfers instead";
  out.push_back(found("registered memory", State::lesser, look_at_registration));
  out.push_back(found("huge pages", State::lesser, look_at_huge_pages));
  out.push_back(found("memory", State::missing, look_at_memory));
  out.push_back(found("NUMA nodes", State::missing, look_at_nodes));
  out.push_back(found("placing memory", State::missing, look_at_placing));
  out.push_back(found("GPU driver", State::missing, look_at_gpus));
  for (const auto& place : places) {
    out.push_back(found(text("storage ", place.string()), State::missing, [&] { return look_at_place(place); }));
  }
  return out;
}

}  // namespace spillway::machine
