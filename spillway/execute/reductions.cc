#include "spillway/execute/reductions.h"

#include <algorithm>
#include <array>

#include "spillway/subspace/sink.h"
#include "spillway/subspace/update.h"

namespace spillway::execute {
namespace {

struct Made {
  const optim::Reduction* by;
  std::unique_ptr<sink::GradientSink> (*gradients)(const plan::Description&, const state::Layout&);
  std::unique_ptr<sink::HostUpdate> (*updates)(const state::Layout&, const state::UpdateRule&);
};

template <class Base, class Of, class... Given>
std::unique_ptr<Base> make(const Given&... given) {
  return std::make_unique<Of>(given...);
}

constexpr auto make_subspaces = make<sink::GradientSink, subspace::Sink, plan::Description, state::Layout>;
constexpr auto make_subspace_update =
    make<sink::HostUpdate, subspace::SubspaceUpdate, state::Layout, state::UpdateRule>;

constexpr std::array kMade{Made{&optim::lsp, make_subspaces, make_subspace_update},
                           Made{&optim::lsp_published, make_subspaces, make_subspace_update}};

/// Without a reduction each of them does nothing.
const Made& made_of(const state::Layout& layout) {
  const auto* const entry = std::ranges::find(kMade, layout.reduction(), &Made::by);
  return entry == kMade.end() ? kMade.front() : *entry;
}

}  // namespace

std::unique_ptr<sink::GradientSink> make_sink(const plan::Description& description, const state::Layout& layout) {
  return made_of(layout).gradients(description, layout);
}

std::unique_ptr<sink::HostUpdate> make_reduced_update(const state::Layout& layout, const state::UpdateRule& rule) {
  return made_of(layout).updates(layout, rule);
}

}  // namespace spillway::execute
