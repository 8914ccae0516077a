#include <array>
#include <string>

#include "spillway/base/error.h"
#include "spillway/optim/optimizers.h"
#include "spillway/optim/reduction.h"

namespace spillway::optim {
namespace {

constexpr std::array kAll{&adamw, &adam, &lion, &sgd, &muon};
constexpr std::array kReductions{&lsp, &lsp_published};

/// The one of `all` whose `word` is `given`.
template <class All, class Word>
auto find(const All& all, Word word, const char* what, std::string_view given) {
  std::string words;
  for (const auto* each : all) {
    if (given == each->*word) return each;
    words += text(words.empty() ? "" : ", ", each->*word);
  }
  throw Error(ErrorCode::bad_input, text(what, " is ", given, "; known: ", words));
}

}  // namespace

std::span<const Descriptor* const> all() noexcept {
  return kAll;
}

std::span<const Reduction* const> reductions() noexcept {
  return kReductions;
}

const Descriptor& parse(std::string_view name) {
  return *find(kAll, &Descriptor::name, "optimizer", name);
}

const Reduction& parse_reduction(std::string_view word) {
  return *find(kReductions, &Reduction::word, "reduction", word);
}

}  // namespace spillway::optim
