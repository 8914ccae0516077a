// Tables of published figures beside simulated ones, as JSON.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "research/study/hardware.h"
#include "spillway/machine/profile_json.h"

namespace spillway::research {

struct Published {
  double value;
  const char* source;
};
inline Published paper(double value) {
  return {value, "paper"};
}
/// Of what was released with the paper: raw figures, logs, scripts.
inline Published repository(double value) {
  return {value, "repository"};
}
/// Computed from published figures, each of which has a row of its own.
inline Published derived(double value) {
  return {value, "derived"};
}

class Report {
 public:
  explicit Report(std::filesystem::path folder) : folder_(std::move(folder)) {}

  [[nodiscard]] machine::Profile profile(const std::string& name) const {
    return machine::load_profile(folder_ / ("papers-" + name + ".json"));
  }
  /// A machine of no paper.
  [[nodiscard]] machine::Profile described(const std::string& name) const {
    return machine::load_profile(folder_ / (name + ".json"));
  }
  [[nodiscard]] study::Hardware machine(const std::string& name) const { return study::make_hardware(profile(name)); }
  /// A figure of the paper beside the simulated one. `how`: "given" to the simulator, "fitted" to it, "about" where the
  /// paper names no number, or "" where it was predicted.
  void row(const std::string& table, const std::string& what, const Published& published, double simulated,
           const char* how = "") {
    out_[table].push_back({{"what", what},
                           {"published", published.value},
                           {"source", published.source},
                           {"simulated", simulated},
                           {"how", how}});
  }
  /// One that nobody has published.
  void plan(const std::string& table, const std::string& what, double simulated) {
    out_[table].push_back({{"what", what}, {"simulated", simulated}});
  }
  [[nodiscard]] std::string text() const { return out_.dump(1); }

 private:
  std::filesystem::path folder_;
  nlohmann::json out_;
};

}  // namespace spillway::research
