#include "spillway/machine/near_gpu.h"

#include "spillway/base/error.h"
#include "spillway/sys/device_id.h"
#include "spillway/sys/pci.h"

namespace spillway::machine {

std::optional<int> gpu_node(int index, const std::string& library, const std::string& root) {
  try {
    const auto gpus = device::gpus(device::CudaDriver(library), root);
    if (index >= 0 && static_cast<std::size_t>(index) < gpus.size()) return gpus[static_cast<std::size_t>(index)].node;
  } catch (const Error&) {  // whoever opens the GPU says what is missing
  }
  return std::nullopt;
}

std::vector<RemoteDrive> remote_drives(std::span<const std::filesystem::path> places, int node,
                                       const std::string& root) {
  std::vector<RemoteDrive> out;
  for (const auto& place : places) {
    const auto near = sys::drive_node(sys::to_string(sys::device_of(place)), root);
    if (near && *near != node) out.push_back({place, *near});
  }
  return out;
}

std::string words_of(const RemoteDrive& drive, int gpu, int node) {
  return text("storage: the drive of ", drive.place.string(), " is by NUMA node ", drive.node, ", and cuda:", gpu,
              " is by node ", node, ": what goes from one to the other crosses the link between the CPUs; a drive ",
              "by node ", node, " does not");
}

}  // namespace spillway::machine
