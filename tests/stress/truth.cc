#include "tests/stress/truth.h"

#include "tests/contract/toy.h"
#include "tests/stress/message.h"

namespace spillway::stress {

Truth::Truth(const Scenario& scenario, std::uint64_t seed)
    : scenario_(scenario), seed_(seed), description_(plan::test::describe(scenario.shape)) {}

Place Truth::at(Place place) const {
  for (auto origin = origins_.find(place.line); origin != origins_.end() && place.step <= origin->second.step;) {
    if (origin->second.line == 0) break;
    place.line = origin->second.line;
    origin = origins_.find(place.line);
  }
  return place;
}

std::uint64_t Truth::hash(Place place) {
  place = at(place);
  if (!hashes_.contains(place.line)) compute(place.line);
  return hashes_.at(place.line).at(place.step);
}

void Truth::compute(std::uint64_t line) {
  Settings settings;
  settings.budget.dram = 4 * GiB;
  Engine engine(description_, settings);
  engine.start();
  test::Toy toy(engine, description_, description_.micro_batches);
  toy.fill();
  auto& out = hashes_[line];
  out.push_back(hash_of(toy.masters()));
  for (std::uint64_t step = 1; step <= scenario_.steps + 2; ++step) {  // a little more than a run takes
    const auto draw = draw_step(scenario_, seed_, at({line, step}).line, step);
    toy.poison(draw.poisoned);
    toy.update = draw.update;
    toy.step(draw.inputs);
    out.push_back(hash_of(toy.masters()));
  }
}

}  // namespace spillway::stress
