// A step for people to read: what its tasks do, block by block, in an order in which they may run.
#pragma once

#include <string>
#include <vector>

#include "spillway/plan/schedule.h"

namespace spillway::plan::step {

/// The tasks of one kind, phase and block.
struct Box {
  Lane lane = Lane::compute;
  KindLabel kind;
  std::string block;      ///< its name in the layout
  std::size_t tasks = 0;  ///< one at least
  Bytes bytes = 0;        ///< that they move; 0: they move none
  unsigned row = 0;       ///< below those of all boxes that it waits for; a lane has one box in a row
};

struct Arrow {
  Index from = kNone, to = kNone;  ///< boxes
  bool skips = false;              ///< blocks that are left out lie between
};

struct Outline {
  std::vector<Box> boxes;     ///< by row where one waits for the other
  std::vector<Arrow> arrows;  ///< without those that follow from others, and without waiting for the step before
  std::vector<Lane> lanes;    ///< that have a box
  std::size_t layers = 0, drawn = 0;  ///< layer blocks of the model, and those of them whose tasks are there
};

/// An outline of a step. The first layer block, one in the middle and the last two stand for all of them if there are
/// more than five.
[[nodiscard]] Outline outline(const Schedule& schedule, const state::Layout& layout);

}  // namespace spillway::plan::step
