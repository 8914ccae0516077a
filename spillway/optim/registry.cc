#include <array>
#include <string>

#include "spillway/base/error.h"
#include "spillway/optim/optimizers.h"
#include "spillway/optim/reduction.h"

namespace spillway::optim {
namespace {

constexpr std::array kAll{&adamw, &adam, &lion, &sgd, &muon};
constexpr std::array kReductions{&lsp};

}  // namespace

std::span<const Descriptor* const> all() noexcept {
  return kAll;
}

std::span<const Reduction* const> reductions() noexcept {
  return kReductions;
}

const Descriptor& parse(std::string_view name) {
  std::string names;
  for (const auto* each : kAll) {
    if (name == each->name) return *each;
    names += text(names.empty() ? "" : ", ", each->name);
  }
  throw Error(ErrorCode::bad_input, text("optimizer is ", name, "; known: ", names));
}

}  // namespace spillway::optim
