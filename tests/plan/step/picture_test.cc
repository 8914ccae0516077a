// A step as a picture: all of its outline, and nothing of a name that means something to SVG.
#include "spillway/plan/step/picture.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/plan/models.h"

namespace spillway::plan::step {
namespace {

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t out = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++out;
  return out;
}

TEST(StepPicture, HasEveryBoxAndArrow) {
  const auto description = test::describe({.layers = 3});
  const auto layout = description.layout();
  auto found = outline(make_schedule(description, layout, Placement(layout), {}), layout);
  found.boxes.front().block = "a<b>&\"c\"";
  const auto svg = to_svg(found), dot = to_dot(found);
  EXPECT_EQ(count(svg, "<title>"), found.boxes.size());
  EXPECT_EQ(count(svg, "marker-end"), found.arrows.size());
  EXPECT_EQ(count(dot, " -> "), found.arrows.size());
  EXPECT_EQ(count(dot, "[group="), found.boxes.size());
  EXPECT_NE(svg.find("a&lt;b>&amp;&quot;c&quot;"), std::string::npos);
  EXPECT_TRUE(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
}

}  // namespace
}  // namespace spillway::plan::step
