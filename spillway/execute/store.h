// Field groups and border activations on the paths, by number, wherever the pool has put them last.
//
// A write takes new places and gives the old ones back first: nothing here survives the run, so what is about to be
// replaced need not be kept.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "spillway/plan/planner.h"
#include "spillway/storage/pool.h"

namespace spillway::execute {

enum class Field : std::uint8_t { weight, state, grad, activation };

class Store {
 public:
  struct Transfer {
    storage::Direction direction = storage::Direction::read;
    Field field = Field::weight;
    std::size_t subject = 0;  ///< chunk; border of activations
    std::byte* memory = nullptr;
    Bytes bytes = 0;
    std::uint64_t deadline = 0;
    storage::Done done = nullptr;
    void* context = nullptr;
    std::uint64_t token = 0;
  };

  /// Room for what the plan does not keep in memory. `pool` and `layout` must outlive it.
  Store(const plan::Plan& plan, const plan::Description& description, const state::Layout& layout, storage::Pool& pool);

  /// As storage::Pool::start. One transfer of a subject at a time; what was never written cannot be read.
  void start(const Transfer& transfer);
  /// Starts a transfer and waits for it; throws its error.
  void run(const Transfer& transfer);

 private:
  struct Object {
    std::vector<storage::Place> places;
    bool written = false;
    std::string name;  ///< for errors
  };
  [[nodiscard]] storage::Pool::Request request(const Transfer& transfer);

  storage::Pool& pool_;
  std::array<std::vector<Object>, 4> objects_;  ///< by field, by subject
};

}  // namespace spillway::execute
