// NUMA nodes that are only files: for tests of whoever asks what nodes there are.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "spillway/sys/nodes.h"
#include "tests/sys/temporary.h"

namespace spillway::testing {

class FakeNodes {
 public:
  struct Node {
    int id;
    std::string cpus;  ///< as the kernel writes it
    Bytes total;
    Bytes free;
    std::string distance;
  };

  void add(const Node& node) {
    const std::string at = "sys/devices/system/node/node" + std::to_string(node.id);
    const std::string name = "Node " + std::to_string(node.id);
    write(at + "/cpulist", node.cpus + "\n");
    write(at + "/distance", node.distance + "\n");
    write(at + "/meminfo", name + " MemTotal:       " + std::to_string(node.total / KiB) + " kB\n" + name +
                               " MemFree:        " + std::to_string(node.free / KiB) + " kB\n");
    ids_.push_back(node.id);
    write("sys/devices/system/node/online", sys::format_list(ids_) + "\n");
  }
  void machine_memory(Bytes total, Bytes free, Bytes available) {
    const auto line = [](const char* key, Bytes bytes) {
      return std::string(key) + ": " + std::to_string(bytes / KiB) + " kB\n";
    };
    write("proc/meminfo", line("MemTotal", total) + line("MemFree", free) + line("MemAvailable", available));
  }
  void write(const std::string& name, const std::string& words) {
    const auto path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << words;
  }

  [[nodiscard]] std::string root() const { return directory_.path().string(); }
  [[nodiscard]] std::vector<sys::Node> nodes() const { return sys::nodes(root()); }

 private:
  TemporaryDirectory directory_;
  std::vector<int> ids_;
};

}  // namespace spillway::testing
