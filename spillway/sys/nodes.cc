#include "spillway/sys/nodes.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "spillway/base/error.h"
#include "spillway/sys/numa.h"
#include "spillway/sys/process.h"

namespace spillway::sys {
namespace {

using Path = std::filesystem::path;

constexpr int kMostNodes = 1024;  // of any kernel: CONFIG_NODES_SHIFT is at most 10
constexpr double kMegabyte = 1e6;
constexpr double kNanosecond = 1e-9;

std::optional<std::string> line_of(const Path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::vector<int> list_in(const Path& path) {
  return parse_list(line_of(path).value_or(""));
}

/// "Node 1 MemFree: 12 kB" by its name, or "MemFree: 12 kB".
std::map<std::string, Bytes> kilobytes_in(const Path& path) {
  std::map<std::string, Bytes> out;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Node ")) line.erase(0, line.find(' ', 5) + 1);
    std::istringstream words(line);
    std::string name;
    Bytes amount = 0;
    if (words >> name >> amount) out[name.substr(0, name.find(':'))] = amount * KiB;
  }
  return out;
}

Bytes value(const std::map<std::string, Bytes>& of, const char* key) {
  const auto found = of.find(key);
  return found == of.end() ? 0 : found->second;
}

void read_memory(Node& node, const Path& directory) {
  const auto found = kilobytes_in(directory / "meminfo");
  node.total = value(found, "MemTotal");
  node.free = std::min(node.total, value(found, "MemFree"));
  const Bytes dirty = value(found, "Dirty") + value(found, "Writeback");
  const Bytes cache = value(found, "Inactive(file)");
  node.available = std::min(node.total, node.free + (cache > dirty ? cache - dirty : 0));
}

std::vector<NodeDistance> distances_of(const Path& directory, const std::vector<int>& online) {
  std::istringstream words(line_of(directory / "distance").value_or(""));
  std::vector<NodeDistance> out;
  for (int distance = 0; out.size() < online.size() && words >> distance;)
    out.push_back({online[out.size()], distance});
  return out;
}

double scaled(const Path& path, double unit) {
  const auto words = line_of(path);
  return words ? std::strtod(words->c_str(), nullptr) * unit : 0;
}

/// access1 counts CPUs only, access0 any initiator; older kernels have the latter alone.
Path initiators_of(const Path& directory) {
  const Path cpu_initiators = directory / "access1" / "initiators";
  return std::filesystem::exists(cpu_initiators / "read_bandwidth") ? cpu_initiators
                                                                    : directory / "access0" / "initiators";
}

std::optional<NodeAttributes> attributes_of(const Path& directory) {
  const Path from = initiators_of(directory);
  const NodeAttributes out{scaled(from / "read_bandwidth", kMegabyte), scaled(from / "write_bandwidth", kMegabyte),
                           scaled(from / "read_latency", kNanosecond), scaled(from / "write_latency", kNanosecond)};
  return out == NodeAttributes{} ? std::nullopt : std::optional(out);
}

std::vector<int> initiator_nodes(const Path& directory, const std::vector<int>& online) {
  std::vector<int> out;
  for (const int id : online) {
    if (std::filesystem::exists(initiators_of(directory) / text("node", id))) out.push_back(id);
  }
  return out;
}

/// Node to memory tier.
std::map<int, int> tiers(const std::string& root) {
  std::map<int, int> out;
  std::error_code missing;
  const std::string prefix = "memory_tier";
  for (const auto& entry : std::filesystem::directory_iterator(root + "/sys/devices/virtual/memory_tiering", missing)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix)) continue;
    for (const int id : list_in(entry.path() / "nodelist")) out[id] = std::atoi(name.c_str() + prefix.size());
  }
  return out;
}

/// Nodes that the cgroup lets this process have memory of; none: it does not say.
std::optional<std::vector<int>> allowed_nodes(const std::string& root) {
  std::ifstream file(root + "/proc/self/status");
  const std::string key = "Mems_allowed_list:";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return parse_list(line.substr(key.size()));
  }
  return std::nullopt;
}

bool contains(const std::vector<int>& list, int id) {
  return std::ranges::find(list, id) != list.end();
}

Node read_node(int id, const Path& all, const std::vector<int>& online) {
  const Path directory = all / text("node", id);
  Node node;
  node.id = id;
  for (const int cpu : list_in(directory / "cpulist")) node.cpus.push_back(static_cast<unsigned>(cpu));
  read_memory(node, directory);
  node.distances = distances_of(directory, online);
  node.attributes = attributes_of(directory);
  node.initiators = initiator_nodes(directory, online);
  return node;
}

/// A node's own figures miss memory that the kernel has not got round to counting at boot; the machine's do not.
void take_machine_memory(Node& node, const std::string& root) {
  const auto found = kilobytes_in(root + "/proc/meminfo");
  if (value(found, "MemTotal") == 0) {
    throw Error(ErrorCode::unsupported, text("no MemTotal in ", root, "/proc/meminfo; mount /proc"));
  }
  node.total = value(found, "MemTotal");
  node.free = std::min(node.total, value(found, "MemFree"));
  node.available = std::min(node.total, value(found, "MemAvailable"));
}

Node whole_machine(const std::string& root) {
  Node node;
  for (const int cpu : list_in(root + "/sys/devices/system/cpu/online"))
    node.cpus.push_back(static_cast<unsigned>(cpu));
  if (node.cpus.empty() && root.empty()) node.cpus = thread_affinity();
  return node;
}

std::string ids(const std::vector<Node>& nodes) {
  std::vector<int> out;
  for (const Node& node : nodes) {
    if (node.has_memory() && node.allowed) out.push_back(node.id);
  }
  return format_list(out);
}

}  // namespace

std::vector<int> parse_list(const std::string& words) {
  std::vector<int> out;
  std::istringstream parts(words);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0;
    const auto from = part.find_first_of("0123456789");
    if (from == std::string::npos) continue;
    const char* end = part.data() + part.size();
    const auto [stop, failure] = std::from_chars(part.data() + from, end, first);
    int last = first;
    if (failure != std::errc{}) continue;
    if (stop != end && *stop == '-' && std::from_chars(stop + 1, end, last).ec != std::errc{}) continue;
    for (; first <= last; ++first) out.push_back(first);
  }
  return out;
}

std::string format_list(const std::vector<int>& numbers) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    out += text(out.empty() ? "" : ",", numbers[i]);
    if (end - i > 1) out += text(end - i > 2 ? "-" : ",", numbers[end - 1]);
    i = end;
  }
  return out;
}

std::vector<Node> nodes(const std::string& root) {
  const Path all = root + "/sys/devices/system/node";
  const std::vector<int> online = list_in(all / "online");
  std::vector<Node> out;
  for (const int id : online) {
    if (id < kMostNodes) out.push_back(read_node(id, all, online));
  }
  if (out.empty()) out.push_back(whole_machine(root));
  const auto with_memory = std::ranges::count_if(out, &Node::has_memory);
  if (with_memory <= 1) {
    const auto only = std::ranges::find_if(out, &Node::has_memory);
    take_machine_memory(only == out.end() ? out.front() : *only, root);
  }
  const auto tier = tiers(root);
  const auto allowed = allowed_nodes(root);
  const auto bound = root.empty() ? bound_nodes() : std::vector<int>{};
  for (Node& node : out) {
    if (const auto found = tier.find(node.id); found != tier.end()) node.tier = found->second;
    node.allowed = (!allowed || contains(*allowed, node.id)) && (bound.empty() || contains(bound, node.id));
  }
  return out;
}

const Node& find_node(const std::vector<Node>& nodes, int id, const std::string& what) {
  const auto found = std::ranges::find(nodes, id, &Node::id);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::bad_input, text(what, " ", id, " ", why, "; memory can be had on node ", ids(nodes)));
  };
  if (found == nodes.end()) refuse("does not exist or is offline");
  if (!found->has_memory()) refuse("has CPUs but no memory");
  if (!found->allowed) refuse("is not permitted to this process (its cpuset, or the numactl that started it)");
  return *found;
}

Bytes takeable(const Node& node) noexcept {
  const Bytes margin = std::clamp(node.total / 64, 16 * MiB, GiB);
  return node.available > margin ? node.available - margin : 0;
}

std::vector<unsigned> core_cpus(unsigned cpu, const std::string& root) {
  const auto topology = Path(root + "/sys/devices/system/cpu") / text("cpu", cpu) / "topology";
  for (const auto* name : {"core_cpus_list", "thread_siblings_list"}) {  // the second before Linux 5.3
    const auto found = list_in(topology / name);
    if (!found.empty()) return {found.begin(), found.end()};
  }
  return {cpu};
}

std::vector<unsigned> nearest_cpus(const std::vector<Node>& nodes, int id) {
  const auto self = std::ranges::find(nodes, id, &Node::id);
  if (self != nodes.end() && !self->cpus.empty()) return self->cpus;
  std::vector<unsigned> near;
  const auto add = [&](const Node& node) { near.insert(near.end(), node.cpus.begin(), node.cpus.end()); };
  if (self != nodes.end()) {
    for (const Node& node : nodes) {
      if (contains(self->initiators, node.id)) add(node);
    }
  }
  int least = 0;
  for (const Node& node : near.empty() ? nodes : std::vector<Node>{}) {
    if (node.cpus.empty()) continue;
    int distance = 255;
    if (self != nodes.end()) {
      const auto known = std::ranges::find(self->distances, node.id, &NodeDistance::node);
      if (known != self->distances.end()) distance = known->distance;
    }
    if (!near.empty() && distance > least) continue;
    if (distance < least) near.clear();
    least = distance;
    add(node);
  }
  return near;
}

}  // namespace spillway::sys
