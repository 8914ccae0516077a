#include "spillway/plan/step/picture.h"

#include <algorithm>
#include <array>

#include "spillway/base/error.h"

namespace spillway::plan::step {
namespace {

// Pixels.
constexpr unsigned kLeft = 24, kTop = 104, kColumn = 290, kRow = 52, kWidth = 228, kHeight = 36;

/// The colours of a run's report, "c1" to "c8".
constexpr std::array<const char*, 9> kColours = {"#b9c1c8", "#3b76c4", "#7a5cc0", "#d1603d", "#c99a1e",
                                                 "#2e8f7e", "#8a9a2b", "#b8457e", "#6f7f8f"};

const char* colour_of(const Box& box) {
  return kColours[static_cast<std::size_t>(box.kind.colour[1] - '0')];
}

std::string escaped(const std::string& words) {
  std::string out;
  for (const char it : words) {
    switch (it) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += it;
    }
  }
  return out;
}

/// "layers.3, 4 tasks, 12.0 MiB"
std::string details(const Box& box) {
  auto out = box.block;
  if (box.tasks > 1) out += text(", ", box.tasks, " tasks");
  if (box.bytes > 0) out += ", " + human(box.bytes);
  return out;
}

/// How much of the step there is, and what of it is left out.
std::array<std::string, 2> summary(const Outline& outline) {
  auto drawn = text("One step: ", outline.boxes.size(), " boxes, each the tasks of one kind, phase and block.");
  if (outline.drawn < outline.layers) {
    drawn += text(" Of ", outline.layers, " layers ", outline.drawn, " are drawn; a dashed arrow skips the others.");
  }
  return {drawn, "Arrows that follow from others are left out, and those from the step before."};
}

class Svg {
 public:
  explicit Svg(const Outline& outline) : outline_(outline) {}

  std::string write() {
    unsigned rows = 0;
    for (const auto& box : outline_.boxes) rows = std::max(rows, box.row + 1);
    const auto columns = static_cast<unsigned>(outline_.lanes.size());
    const auto width = std::max(2 * kLeft + columns * kColumn, 700U), height = kTop + rows * kRow + kLeft;
    out_ =
        text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height, "\" width=\"", width,
             "\" height=\"", height, "\" font-family=\"system-ui,sans-serif\" font-size=\"12\">\n",
             "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" ",
             "orient=\"auto\"><path d=\"M0 0 8 4 0 8z\" fill=\"#8a949c\"/></marker></defs>\n",
             "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    const auto lines = summary(outline_);
    for (unsigned i = 0; i < lines.size(); ++i) {
      out_ += text("<text x=\"", kLeft, "\" y=\"", 24 + 18 * i, "\" fill=\"#59636b\">", lines[i], "</text>\n");
    }
    for (unsigned i = 0; i < columns; ++i) add_lane(i, height);
    for (const auto& arrow : outline_.arrows) add(arrow);
    for (const auto& box : outline_.boxes) add(box);
    return out_ + "</svg>\n";
  }

 private:
  [[nodiscard]] unsigned x(const Box& box) const {
    const auto at = std::ranges::find(outline_.lanes, box.lane) - outline_.lanes.begin();
    return kLeft + static_cast<unsigned>(at) * kColumn;
  }
  static unsigned y(const Box& box) { return kTop + box.row * kRow; }

  void add_lane(unsigned column, unsigned height) {
    const auto left = kLeft + column * kColumn;
    out_ += text("<rect x=\"", left - 10, "\" y=\"60\" width=\"", kWidth + 20, "\" height=\"", height - 70,
                 "\" rx=\"6\" fill=\"#f3f5f7\"/>\n<text x=\"", left,
                 "\" y=\"84\" font-weight=\"600\" fill=\"#22282c\">", name_of(outline_.lanes[column]), "</text>\n");
  }

  void add(const Box& box) {
    const auto left = x(box), top = y(box);
    const auto what = escaped(box.kind.name), where = escaped(details(box));
    out_ += text("<g><title>", what, " ", where, "</title><rect x=\"", left, "\" y=\"", top, "\" width=\"", kWidth,
                 "\" height=\"", kHeight, "\" rx=\"5\" fill=\"#fff\"/><rect x=\"", left, "\" y=\"", top, "\" width=\"",
                 kWidth, "\" height=\"", kHeight, "\" rx=\"5\" fill=\"", colour_of(box),
                 "\" fill-opacity=\".18\" stroke=\"", colour_of(box), "\"/><text x=\"", left + 8, "\" y=\"", top + 15,
                 "\" fill=\"#22282c\">", what, "</text><text x=\"", left + 8, "\" y=\"", top + 29,
                 "\" font-size=\"10\" fill=\"#59636b\">", where, "</text></g>\n");
  }

  /// Down a lane; past what lies between, on its right; from lane to lane between the sides that face each other.
  void add(const Arrow& arrow) {
    const auto &from = outline_.boxes[arrow.from], &to = outline_.boxes[arrow.to];
    const auto x0 = x(from), x1 = x(to), y0 = y(from) + kHeight / 2, y1 = y(to) + kHeight / 2;
    std::string path;
    if (x0 == x1 && to.row == from.row + 1) {
      path = text("M", x0 + kWidth / 2, " ", y0 + kHeight / 2, "V", y1 - kHeight / 2);
    } else if (x0 == x1) {
      const auto side = x0 + kWidth;
      path = text("M", side, " ", y0, "C", side + 28, " ", y0, " ", side + 28, " ", y1, " ", side, " ", y1);
    } else {
      const auto start = x0 < x1 ? x0 + kWidth : x0, end = x0 < x1 ? x1 : x1 + kWidth, middle = (start + end) / 2;
      path = text("M", start, " ", y0, "C", middle, " ", y0, " ", middle, " ", y1, " ", end, " ", y1);
    }
    out_ += text("<path d=\"", path, "\" fill=\"none\" stroke=\"", colour_of(from), "\" stroke-opacity=\".7\"",
                 arrow.skips ? " stroke-dasharray=\"5 4\"" : "", " marker-end=\"url(#tip)\"/>\n");
  }

  const Outline& outline_;
  std::string out_;
};

}  // namespace

std::string to_svg(const Outline& outline) {
  return Svg(outline).write();
}

std::string to_dot(const Outline& outline) {
  const auto lines = summary(outline);
  auto out = text("digraph step {\n  label=\"", lines[0], "\\n", lines[1], "\";\n",
                  "  node [shape=box, style=\"rounded,filled\", fontname=\"sans-serif\", fontcolor=white];\n");
  for (std::size_t b = 0; b < outline.boxes.size(); ++b) {
    const auto& box = outline.boxes[b];
    out += text("  b", b, " [group=", name_of(box.lane), ", fillcolor=\"", colour_of(box), "\", label=\"",
                box.kind.name, "\\n", escaped(details(box)), "\\n", name_of(box.lane), "\"];\n");
  }
  for (const auto& arrow : outline.arrows) {
    out += text("  b", arrow.from, " -> b", arrow.to, arrow.skips ? " [style=dashed];\n" : ";\n");
  }
  return out + "}\n";
}

}  // namespace spillway::plan::step
