#include "spillway/plan/step/gradients.h"
#include "spillway/plan/step/hops.h"

namespace spillway::plan::step {
namespace {

/// The sums that a device has made, to the buffer on the host that the scatter sends from, which is returned.
Index add_sums_download(StepGraph& graph, Index pass, Place from, Bytes bytes) {
  const auto& here = graph.out.buffers[from.buffer];
  const auto to = graph.add_buffer(BufferClass::scratch, bytes, here.first, here.last);
  const auto chunks = chunks_of(graph.layout, graph.out.passes[pass]);
  const Object what{ObjectKind::gradient, chunks.first, chunks.count};
  graph.downloads[pass] = take_from_pass(graph, {what, from, {to}, bytes}, pass);
  graph.need(graph.scatters[pass].first, graph.downloads[pass]);
  return to;
}

}  // namespace

void add_gradient_sums(StepGraph& graph, const GradientUse& use) {
  const auto sums = graph.description.gradient_sums();
  if (sums == 0) return;
  const auto pass = use.made;
  const bool sends = graph.scatters[pass].any();
  std::uint64_t values = 0;
  for (auto c = use.chunks.first; c < use.chunks.end(); ++c) values += graph.chunk(c).gradient_elements;
  const auto bytes = sums * values * sizeof(float);
  const auto at = graph.order.position(pass);
  const auto until = sends ? around_pass(graph, hop_between(TierKind::host, TierKind::peer), pass) : at;
  const auto sum = graph.add_buffer(BufferClass::scratch, bytes, at, until, graph.compute_tier());
  graph.fills(graph.task_of(pass), sum);
  graph.out.passes[pass][Operand::gradient_sums] = sum;
  const bool crosses = sends && !graph.computes_on_host(pass);
  const auto sent = crosses ? add_sums_download(graph, pass, {sum}, bytes) : sum;
  if (sends) graph.out.passes[pass][Operand::sent_sums] = sent;
  graph.lets_go(graph.maker_of(pass), sent);
}

}  // namespace spillway::plan::step
