// A step as a picture: lanes side by side, time downwards.
#pragma once

#include <string>

#include "spillway/plan/step/outline.h"

namespace spillway::plan::step {

/// SVG that stands alone, readable on light and on dark ground.
[[nodiscard]] std::string to_svg(const Outline& outline);
/// The picture's boxes and arrows for Graphviz.
[[nodiscard]] std::string to_dot(const Outline& outline);

}  // namespace spillway::plan::step
