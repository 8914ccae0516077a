#include "spillway/plan/reduced_json.h"

namespace spillway::plan {

nlohmann::json reduced_json(const ReducedShare& share, const InFull& in_full, bool helps) {
  nlohmann::json out = {{"matrices", share.matrices},
                        {"elements", share.elements},
                        {"gradient_bytes", share.gradients},
                        {"gradient_bytes_in_full", share.gradients_in_full},
                        {"helps", helps}};
  if (!in_full.fits) return out;
  out["in_full"] = {{"predicted_step_seconds", in_full.step_seconds},
                    {"without_products_seconds", in_full.hidden_seconds},
                    {"path_bytes_per_step", in_full.on_paths},
                    {"device_bytes_per_step", in_full.on_link}};
  return out;
}

}  // namespace spillway::plan
