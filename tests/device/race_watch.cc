#include "tests/device/race_watch.h"

#include <cstdio>
#include <cstdlib>

namespace spillway::device::fake {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

void RaceWatch::read_setting() {
  const auto now = variable("FAKE_CUDA_DROP");
  if (now == setting_) return;
  setting_ = now;
  dropped_ = now.substr(0, now.find(':'));
  turn_ = now.size() > dropped_.size() ? std::atoi(now.c_str() + dropped_.size() + 1) : 0;
  calls_.clear();
  race_.clear();
  was_for_host_ = false;
  order.forget();
}

bool RaceWatch::allow(Participant by, const std::string& name, std::span<const Range> ranges) {
  const auto races = variable("FAKE_CUDA_RACES");
  if (races == "off") return true;
  read_setting();
  const auto race = order.run(by, name, ranges);
  if (race.empty()) return true;
  report(race);
  return false;
}

void RaceWatch::report(const std::string& race) {
  if (race_.empty()) race_ = race;
  if (variable("FAKE_CUDA_RACES") == "fail") return;
  std::fprintf(stderr, "a race on the fake GPU: %s\n", race.c_str());
  std::abort();
}

bool RaceWatch::drops(const std::string& kind, const VectorClock& event) {
  read_setting();
  if (++calls_[kind] != turn_ || kind != dropped_) return false;
  was_for_host_ = kind != "wait" && order.stands_for(event, "copy ");
  return true;
}

int RaceWatch::calls(const std::string& kind) const {
  const auto it = calls_.find(kind);
  return it == calls_.end() ? 0 : it->second;
}

}  // namespace spillway::device::fake
