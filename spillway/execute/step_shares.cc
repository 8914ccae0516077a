// Shares of a step: one process's tokens, and the norm that all of them add up.
#include <algorithm>

#include "spillway/base/error.h"
#include "spillway/execute/step.h"
#include "spillway/network/exchange.h"
#include "spillway/plan/virtual_ranks.h"

namespace spillway::execute {
namespace {

/// Adds the numbers of these processes. `mutual`: they add this one's, too.
void add_numbers(network::Port& port, const std::vector<std::size_t>& peers, bool mutual,
                 std::vector<double>& numbers) {
  std::vector<std::vector<double>> others(peers.size(), std::vector<double>(numbers.size()));
  std::vector<network::Message> messages;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (mutual) messages.push_back({peers[i], true, std::as_writable_bytes(std::span(numbers))});
    messages.push_back({peers[i], false, std::as_writable_bytes(std::span(others[i]))});
  }
  if (!messages.empty()) network::exchange(port, std::move(messages));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    for (const auto& other : others) numbers[i] += other[i];
  }
}

/// Adds those of all processes, each of which has its own and zeros: those of a machine in its first process, which
/// then has to do with the first ones of the others.
void gather(const state::World& world, network::Port& port, std::vector<double>& numbers) {
  const auto first = world.machine_of(world.rank) * world.local;
  const auto bytes = std::as_writable_bytes(std::span(numbers));
  if (world.rank != first) {
    network::move_bytes(port, std::span(&first, 1), true, bytes);
    return network::move_bytes(port, std::span(&first, 1), false, bytes);
  }
  std::vector<std::size_t> here, elsewhere;
  for (auto peer = first + 1; peer < first + world.local; ++peer) here.push_back(peer);
  for (std::size_t peer = 0; peer < world.size; peer += world.local) {
    if (peer != first) elsewhere.push_back(peer);
  }
  add_numbers(port, here, false, numbers);
  add_numbers(port, elsewhere, true, numbers);
  network::move_bytes(port, here, true, bytes);
}

}  // namespace

void Step::check(const StepBegin& begin) const {
  std::uint64_t tokens = 0;
  for (const auto count : begin.counts) tokens += count;
  const auto& description = parts_.plan.description;
  if (begin.counts.empty() || begin.counts.size() > description.micro_batches || tokens > description.all_tokens()) {
    throw Error(ErrorCode::bad_input,
                text("a step of ", begin.counts.size(), " micro-batches and ", tokens, " tokens; the plan holds 1 to ",
                     description.micro_batches, " micro-batches and ", description.all_tokens(), " tokens"));
  }
  const auto ranks = plan::VirtualRanks(description.virtual_ranks, begin.counts.size())
                         .restrict_to(description.world.rank, description.world.size);
  std::uint64_t own = 0;
  for (auto m = ranks.position_of(ranks.first()); m < ranks.position_of(ranks.end()); ++m) own += begin.counts[m];
  if (own > description.tokens) {
    throw Error(ErrorCode::bad_input, text("a step of which rank ", description.world.rank, " computes ", own,
                                           " tokens; the plan holds ", description.tokens));
  }
  if (rows_ && begin.ids.size() != tokens) {
    throw Error(ErrorCode::bad_input, text(begin.ids.size(), " token ids for ", tokens, " tokens"));
  }
  if (begin.update) check(*begin.update);
}

kernels::Norm Step::norm() {
  passes_.require_ended();
  protocol_.norm();
  executor_.end_network();
  return norm_ = parts_.plan.description.is_shared() ? shared_norm() : gradients_.total();
}

kernels::Norm Step::shared_norm() {
  auto& sink = parts_.resources.gradient_sink();
  const auto& squares = gradients_.squares();
  const auto records = sink.records();
  std::vector<double> numbers(squares.begin(), squares.end());
  numbers.insert(numbers.end(), records.begin(), records.end());
  gather(parts_.plan.description.world, *parts_.plan.network, numbers);
  std::copy(numbers.begin() + static_cast<std::ptrdiff_t>(squares.size()), numbers.end(), records.begin());
  sink.tell();
  kernels::Norm out;
  for (std::size_t i = 0; i < squares.size(); ++i) out.sum += numbers[i];
  return out;
}

}  // namespace spillway::execute
