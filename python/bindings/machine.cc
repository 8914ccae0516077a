// Facts about this machine and this process.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>

#include "module.h"
#include "spillway/base/error.h"
#include "spillway/device/cuda.h"
#include "spillway/device/cuda_launch.h"
#include "spillway/execute/device_options.h"
#include "spillway/machine/checkup.h"
#include "spillway/machine/device_update.h"
#include "spillway/machine/facts.h"
#include "spillway/machine/gpu_link.h"
#include "spillway/machine/measure.h"
#include "spillway/machine/memory_files.h"
#include "spillway/machine/near_gpu.h"
#include "spillway/machine/node_choice.h"
#include "spillway/machine/node_rates.h"
#include "spillway/machine/probe.h"
#include "spillway/machine/profile_json.h"
#include "spillway/plan/described.h"
#include "spillway/state/rule.h"
#include "spillway/sys/aligned_heap.h"
#include "spillway/sys/cpu.h"
#include "spillway/sys/exchange.h"
#include "spillway/sys/process.h"
#include "struct.h"

namespace nb = nanobind;

namespace {

spillway::machine::UpdateKind kind_of(const std::string& weight_dtype, const std::string& optimizer,
                                      const std::string& state_format) {
  const spillway::state::UpdateRule rule{.type = spillway::state::parse_weight_type(weight_dtype),
                                         .optimizer = &spillway::optim::parse(optimizer),
                                         .state_format = spillway::state::parse_format(state_format)};
  // What is measured is what most elements are updated by; of whole matrices a descriptor says the cost.
  return {form_of(rule), rule.optimizer->of(false).kernel};
}

void bind_rates(nb::module_& module) {
  using spillway::machine::NodeRate, spillway::machine::NodeShare, spillway::machine::NodeChoice;
  bind_struct<NodeRate>(module, "NodeRate", "Rates of a NUMA node, or of a file as memory.",
                        Field("update_elements_per_second", &NodeRate::update_elements_per_second),
                        Field("update_elements_per_second_thread", &NodeRate::update_elements_per_second_thread),
                        Field("read_bytes_per_second", &NodeRate::read_bytes_per_second));
  bind_struct<NodeShare>(module, "NodeShare", "Bytes of a NUMA node for a run.", Field("id", &NodeShare::id),
                         Field("capacity", &NodeShare::capacity));
  bind_struct<NodeChoice>(module, "NodeChoice", "NUMA nodes for a run.", Field("nodes", &NodeChoice::nodes),
                          Field("dram", &NodeChoice::dram), Field("notice", &NodeChoice::notice));
}

void bind_memory_files(nb::module_& module) {
  module.def(
      "check_memory_files",
      [](const std::vector<std::pair<std::string, std::uint64_t>>& asked) {
        std::vector<spillway::machine::FileShare> shares;
        for (const auto& [directory, bytes] : asked) shares.push_back({directory, bytes});
        std::vector<std::pair<bool, std::string>> out;
        for (const auto& file : spillway::machine::check_files(shares)) out.emplace_back(file.in_dram, file.notice);
        return out;
      },
      nb::arg("asked"), "(whether its bytes are DRAM, what a person should know) of directories for files as memory.");
  module.def(
      "measure_memory_file",
      [](const std::string& directory, std::uint64_t bytes, std::uint64_t most, double seconds,
         const std::string& weight_dtype, const std::string& optimizer, const std::string& state_format) {
        const auto kind = kind_of(weight_dtype, optimizer, state_format);
        const nb::gil_scoped_release release;
        return spillway::machine::measure_file({directory, bytes}, most, seconds, kind);
      },
      nb::arg("directory"), nb::arg("bytes"), nb::arg("most"), nb::arg("seconds") = 0.4,
      nb::arg("weight_dtype") = "bf16", nb::arg("optimizer") = "adamw", nb::arg("state_format") = "exact",
      "Rates of a file as memory.");
}

void bind_process(nb::module_& module) {
  module.def(
      "exchange",
      [](const std::string& one, const std::string& other) {
        const nb::gil_scoped_release release;
        return spillway::sys::exchange(one, other);
      },
      nb::arg("one"), nb::arg("other"),
      "Two names of one file system change what they have, at once. False where the file system cannot do that.");
  module.def("gpu_kernels", [] { return !spillway::device::cuda_kernels().empty(); });
  module.def(
      "load_gpu_kernels",
      [](int index) {
        const nb::gil_scoped_release release;
        try {
          const auto device = spillway::device::make_cuda({.index = index});
          auto refusal = device->cannot_compute();
          return std::pair(refusal.empty(), refusal.empty() ? device->computes_with() : refusal);
        } catch (const spillway::Error& error) {
          return std::pair(false, std::string(error.what()));
        }
      },
      nb::arg("index"),
      "(whether that GPU's driver takes the kernels, in which form or why not), found out by loading them.");
  module.def(
      "dram_available", [] { return spillway::sys::dram_facts().available; },
      "Bytes of DRAM this process can take now without swapping or being killed (cgroups included).");
  module.def(
      "dram_total", [] { return spillway::sys::dram_facts().total; },
      "Bytes of DRAM of the machine, or the cgroup's limit where that is less.");
  module.def(
      "resident", [] { return spillway::sys::process_memory().resident; }, "Resident bytes of this process now.");
  module.def(
      "peak_resident", [] { return spillway::sys::process_memory().peak_resident; },
      "Highest resident bytes of this process since its start or the last reset_peak_resident().");
  module.def(
      "reset_peak_resident", [] { return spillway::sys::reset_peak_resident(); },
      "Starts peak_resident() anew from the present; False where the kernel refuses.");
  module.def(
      "redirect_posix_memalign",
      [](const std::vector<std::string>& libraries) { return spillway::sys::redirect_posix_memalign(libraries); },
      nb::arg("libraries"),
      "Has loaded libraries take aligned memory so that its place serves again when it is freed; how many of their "
      "calls do.");
  module.def(
      "cores", [] { return spillway::machine::facts().cores; },
      "CPUs this process may run on, by affinity and cgroup.");
  module.def(
      "drop_from_caches",
      [](std::uintptr_t address, std::uint64_t bytes) {
        spillway::sys::drop_from_caches({reinterpret_cast<const std::byte*>(address), bytes});  // NOLINT
      },
      nb::arg("address"), nb::arg("bytes"), "So that the next to read them reads memory; for measuring.");
}

void bind_measurements(nb::module_& module) {
  module.def(
      "measure",
      [](const std::vector<std::string>& directories, double seconds, const std::string& weight_dtype,
         const std::string& optimizer, const std::string& state_format, std::uint64_t most_memory) {
        const auto kind = kind_of(weight_dtype, optimizer, state_format);
        const nb::gil_scoped_release release;
        const std::vector<std::filesystem::path> paths(directories.begin(), directories.end());
        return spillway::machine::measure(paths, seconds, kind, most_memory);
      },
      nb::arg("directories"), nb::arg("seconds") = 0.4, nb::arg("weight_dtype") = "bf16",
      nb::arg("optimizer") = "adamw", nb::arg("state_format") = "exact", nb::arg("most_memory") = ~std::uint64_t{0},
      "This machine's profile; `directories`: where the storage paths' rates are measured.");
  module.def(
      "probe",
      [](const std::vector<std::string>& directories, double seconds) {
        const nb::gil_scoped_release release;
        const std::vector<std::filesystem::path> paths(directories.begin(), directories.end());
        return spillway::machine::probe(paths, seconds);
      },
      nb::arg("directories"), nb::arg("seconds") = 0.4,
      "This machine's profile, with its NUMA nodes and the matrix of CPUs by memory.");
  module.def(
      "measure_nodes",
      [](const std::vector<int>& nodes, double seconds, const std::string& weight_dtype, const std::string& optimizer,
         const std::string& state_format) {
        const auto kind = kind_of(weight_dtype, optimizer, state_format);
        const nb::gil_scoped_release release;
        return spillway::machine::measure_nodes(nodes, seconds, kind);
      },
      nb::arg("nodes"), nb::arg("seconds") = 0.4, nb::arg("weight_dtype") = "bf16", nb::arg("optimizer") = "adamw",
      nb::arg("state_format") = "exact", "Rates of NUMA nodes.");
  module.def(
      "measure_device",
      [](const std::string& name, std::uint64_t bytes, double seconds, const std::string& weight_dtype,
         const std::string& optimizer, const std::string& state_format) {
        const auto kind = kind_of(weight_dtype, optimizer, state_format);
        const bool updates = spillway::optim::parse(optimizer).on_device;
        const nb::gil_scoped_release release;
        const auto open = spillway::execute::open_device({.name = name});
        const auto link = spillway::machine::measure_links(*open.device, {.seconds = seconds, .memory = bytes}).front();
        const auto update = updates ? spillway::machine::device_update_rate(*open.device, seconds, kind) : 0.0;
        return std::tuple(link.to_gpu_bytes_per_second_together, link.from_gpu_bytes_per_second_together, update);
      },
      nb::arg("name"), nb::arg("bytes"), nb::arg("seconds") = 0.2, nb::arg("weight_dtype") = "bf16",
      nb::arg("optimizer") = "adamw", nb::arg("state_format") = "exact",
      "Rates of a compute device with memory of its own: to it, from it, and of updates there.");
}

void bind_nodes(nb::module_& module) {
  module.def(
      "checkup",
      [](const std::vector<std::string>& places) {
        const std::vector<std::filesystem::path> paths(places.begin(), places.end());
        std::vector<std::tuple<std::string, std::string, std::string>> out;
        for (const auto& finding : spillway::machine::checkup(paths)) {
          const char* states[] = {"good", "lesser", "missing"};
          out.emplace_back(finding.what, states[static_cast<int>(finding.state)], finding.words);
        }
        return out;
      },
      nb::arg("places"), "(what, good, lesser or missing, words) of each thing that the engine can use here.");
  module.def(
      "choose_nodes",
      [](const std::vector<std::pair<int, std::uint64_t>>& asked, std::uint64_t held, std::optional<int> near) {
        std::vector<spillway::machine::NodeShare> shares;
        for (const auto& [id, bytes] : asked) shares.push_back({id, bytes});
        return spillway::machine::choose_nodes(shares, held, "", near);
      },
      nb::arg("asked"), nb::arg("held"), nb::arg("near") = nb::none(), "NUMA nodes for a run.");
  module.def(
      "near_gpu",
      [](int gpu, const std::vector<std::string>& places) {
        const auto node = spillway::machine::gpu_node(gpu);
        std::map<std::string, std::pair<int, std::string>> remote;
        if (node) {
          const std::vector<std::filesystem::path> paths(places.begin(), places.end());
          for (const auto& drive : spillway::machine::remote_drives(paths, *node)) {
            remote[drive.place.string()] = {drive.node, spillway::machine::words_of(drive, gpu, *node)};
          }
        }
        return std::pair(node, remote);
      },
      nb::arg("gpu"), nb::arg("places"),
      "(NUMA node or None, {place: (NUMA node, words)} of drives that are remote) of a GPU.");
}

}  // namespace

void bind_machine(nb::module_& module) {
  bind_rates(module);
  bind_memory_files(module);
  bind_process(module);
  bind_measurements(module);
  bind_nodes(module);
}
