#include "spillway/plan/kinds.h"

#include "spillway/base/error.h"

namespace spillway::plan {

KindLabel label_of(Op op, Lane lane, ObjectKind kind) {
  const auto& object = traits(kind);
  if (op == Op::transfer) return {std::string(traits(lane).moves) + " " + object.name, object.colour};
  const auto* const inside = op == Op::local_gather || op == Op::local_scatter ? " in the machine" : "";
  if (op == Op::gather || op == Op::local_gather) {
    const auto& gathered = traits(kind == ObjectKind::pass ? ObjectKind::weight : kind);
    return {text("gather ", gathered.name, kind == ObjectKind::pass ? "s" : "", inside), gathered.colour};
  }
  if (op == Op::scatter || op == Op::local_scatter) {
    return {text("scatter gradients", inside), traits(ObjectKind::gradient).colour};
  }
  if (op == Op::apply) return {text("apply ", object.name), object.colour};
  return {op == Op::update ? "update" : op == Op::refit ? "fit" : "compute", object.colour};
}

std::vector<KindLabel> kind_labels() {
  std::vector<KindLabel> out;
  out.reserve(kPasses.size());
  for (const auto& pass : kPasses) out.push_back({pass.name, pass.colour});
  out.push_back(label_of(Op::update, Lane::update, ObjectKind::chunk));
  for (std::size_t lane = 0; lane < kLanes.size(); ++lane) {
    for (std::size_t kind = 0; kind < kObjects.size(); ++kind) {
      if ((kObjects[kind].lanes >> lane & 1) == 0) continue;
      out.push_back(label_of(Op::transfer, static_cast<Lane>(lane), static_cast<ObjectKind>(kind)));
    }
  }
  out.push_back(label_of(Op::apply, Lane::device_update, ObjectKind::change));
  out.push_back(label_of(Op::refit, Lane::refit, ObjectKind::auxiliary));
  for (const auto op : {Op::gather, Op::local_gather, Op::local_scatter, Op::scatter}) {
    out.push_back(label_of(op, Lane::network, ObjectKind::pass));
  }
  for (const auto op : {Op::gather, Op::local_gather}) {
    out.push_back(label_of(op, Lane::network, ObjectKind::auxiliary));
  }
  return out;
}

}  // namespace spillway::plan
