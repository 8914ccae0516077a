#include "spillway/plan/kinds.h"

namespace spillway::plan {

KindLabel label_of(Op op, Lane lane, ObjectKind kind) {
  const auto& object = traits(kind);
  if (op == Op::transfer) return {std::string(traits(lane).moves) + " " + object.name, object.colour};
  if (op == Op::gather) return {"gather weights", traits(ObjectKind::weight).colour};
  if (op == Op::local_gather) return {"gather weights in the machine", traits(ObjectKind::weight).colour};
  if (op == Op::local_scatter) return {"scatter gradients in the machine", traits(ObjectKind::gradient).colour};
  if (op == Op::scatter) return {"scatter gradients", traits(ObjectKind::gradient).colour};
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
  out.push_back(label_of(Op::refit, Lane::refit, ObjectKind::auxiliary));
  for (const auto op : {Op::gather, Op::local_gather, Op::local_scatter, Op::scatter}) {
    out.push_back(label_of(op, Lane::network, ObjectKind::pass));
  }
  return out;
}

}  // namespace spillway::plan
