#include "spillway/plan/fits.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/plan/bisect.h"
#include "spillway/plan/if_it_fits.h"

namespace spillway::plan {
namespace {

constexpr std::uint64_t kFitsGrain = 64;
constexpr unsigned kPlanners = 4;      // threads that plan cells of a table, at most: each plan takes memory of its own
constexpr std::uint64_t kFarther = 4;  // times the sequence of the dry run: beyond that the line says little

void check(const FitRequest& request) {
  if (request.sequence > 0 && request.batch > 0) return;
  throw Error(ErrorCode::bad_input, text("what fits is asked of ", request.batch, " rows of ", request.sequence,
                                         " tokens; both must be above 0"));
}

Bytes changed(Bytes bytes, double per_token, double more_tokens) {
  return static_cast<Bytes>(std::max(0.0, static_cast<double>(bytes) + per_token * more_tokens));
}

/// Passes over so many times the tokens.
void scale(Rates& rates, double times) {
  for (auto* seconds : {&rates.forward, &rates.backward, &rates.kept_forward, &rates.kept_backward, &rates.head_loss,
                        &rates.head_gradient, &rates.tail_forward, &rates.tail_backward, &rates.between}) {
    *seconds *= times;
  }
}

/// The request with micro-batches of so many tokens.
FitRequest with(const FitRequest& request, std::uint64_t tokens_of_micro_batch) {
  auto out = request;
  const auto before = static_cast<double>(request.sequence * request.batch);
  const auto tokens = static_cast<double>(tokens_of_micro_batch);
  const auto times = tokens / before;
  out.description.tokens = static_cast<std::uint64_t>(std::ceil(static_cast<double>(out.description.tokens) * times));
  out.description.step_tokens =
      static_cast<std::uint64_t>(std::ceil(static_cast<double>(out.description.step_tokens) * times));
  out.budget.work = changed(out.budget.work, request.work_per_token, tokens - before);
  if (out.budget.device) {
    out.budget.device->work = changed(out.budget.device->work, request.device_per_token, tokens - before);
  }
  scale(out.rates, times);
  return out;
}

/// None where it does not fit.
std::optional<Plan> plan_of(const FitRequest& asked, const state::Layout& layout) {
  return if_it_fits([&] { return plan_alone(asked.description, layout, asked.budget, asked.rates); });
}

/// Tokens per second.
double rate_of(const FitRequest& asked, const Plan& plan) {
  return static_cast<double>(asked.description.all_tokens()) / plan.prediction.step_seconds;
}

/// Answers of the planner, so that it is asked each question once. Only the product of sequence and batch counts, and
/// more DRAM than a plan can use changes nothing.
class Cells {
 public:
  explicit Cells(const FitRequest& request) : request_(request), layout_(request.description.layout()) {
    if (const auto* plan = request.planned) {
      known_[request.sequence * request.batch].push_back(
          {.dram = request.budget.dram, .rate = rate_of(request, *plan), .ample = plan->ample});
    }
  }

  /// Asks for every cell of a table, on several threads: those of one product of sequence and batch on one, from the
  /// small budgets on, of which the large ones follow.
  void ask_all(const FitTable& table) {
    std::set<std::uint64_t, std::greater<>> distinct;
    for (const auto sequence : table.sequences) {
      for (const auto batch : table.batches) distinct.insert(sequence * batch);
    }
    for (const auto product : distinct) known_.try_emplace(product);  // here: threads find what is there
    const std::vector<std::uint64_t> products(distinct.begin(), distinct.end());
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      for (std::size_t at; (at = next++) < products.size();) {
        for (const auto budget : table.dram_budgets) rate(known_.at(products[at]), budget, products[at]);
      }
    };
    std::vector<std::future<void>> others;
    for (auto left = std::clamp(std::thread::hardware_concurrency(), 1U, kPlanners); left > 1; --left) {
      try {
        others.push_back(std::async(std::launch::async, work));
      } catch (const std::system_error&) {  // those that there are plan it all
        break;
      }
    }
    work();
    for (auto& other : others) other.get();
  }

  /// Tokens per second; 0: it does not fit.
  double rate(Bytes dram, std::uint64_t sequence, std::uint64_t batch) {
    return rate(known_[sequence * batch], dram, sequence * batch);
  }

  /// True if it fits. Layers that may keep or spill do not matter: a step needs least memory with all of them
  /// recomputed.
  bool fits(Bytes dram, std::uint64_t sequence, std::uint64_t batch) const {
    auto asked = with(request_, sequence * batch);
    asked.budget.dram = dram;
    if (!asked.budget.saved_activations.keep) asked.budget.saved_activations = {};
    return least_fits(asked.description, layout_, asked.budget, asked.rates) || plan_of(asked, layout_);
  }

 private:
  struct Known {
    Bytes dram = 0;
    double rate = 0;
    bool ample = false;
  };

  double rate(std::vector<Known>& known, Bytes dram, std::uint64_t tokens) const {
    const auto same = [&](const Known& it) { return it.dram == dram || (it.ample && it.dram <= dram); };
    if (const auto it = std::ranges::find_if(known, same); it != known.end()) return it->rate;
    return known.emplace_back(ask(dram, tokens)).rate;
  }

  [[nodiscard]] Known ask(Bytes dram, std::uint64_t tokens) const {
    auto asked = with(request_, tokens);
    asked.budget.dram = dram;
    const auto plan = plan_of(asked, layout_);
    return plan ? Known{dram, rate_of(asked, *plan), plan->ample} : Known{.dram = dram};
  }

  const FitRequest& request_;
  const state::Layout layout_;                         // of all: it knows nothing of tokens
  std::map<std::uint64_t, std::vector<Known>> known_;  // by tokens of a micro-batch
};

FitTable fit_table(const FitRequest& request, Cells& cells) {
  FitTable out{
      .dram_budgets = {request.budget.dram / 2, request.budget.dram, request.budget.dram * 2},
      .sequences = {std::max<std::uint64_t>(1, request.sequence / 2), request.sequence, request.sequence * 2,
                    request.sequence * 4},
      .batches = {request.batch, request.batch * 2},
  };
  if (request.batch > 1) out.batches.insert(out.batches.begin(), request.batch / 2);
  cells.ask_all(out);
  for (const auto budget : out.dram_budgets) {
    for (const auto sequence : out.sequences) {
      for (const auto batch : out.batches) out.tokens_per_second.push_back(cells.rate(budget, sequence, batch));
    }
  }
  return out;
}

std::uint64_t longest_sequence(const FitRequest& request, const Cells& cells) {
  const auto grain = std::min(kFitsGrain, request.sequence);
  const auto most = request.sequence * kFarther / grain;
  const auto fits = [&](std::uint64_t grains) {
    return cells.fits(request.budget.dram, grains * grain, request.batch);
  };
  return grain * (fits(most) ? most : bisect(most - 1, fits));
}

/// The plan with a GiB more where layers keep what autograd saves of them; nothing where none can.
std::optional<LargerMemory> with_a_gib_more(const FitRequest& request) {
  auto budget = request.budget;
  if (budget.saved_activations.blocks.empty()) return std::nullopt;
  const bool there = budget.saved_activations.on_device && budget.device;
  (there ? budget.device->capacity : budget.dram) += GiB;
  if (!there && budget.has_nodes()) budget.nodes[0].capacity += GiB;
  const auto plan = plan_alone(request.description, request.description.layout(), budget, request.rates);
  return LargerMemory{.tier = there ? "device" : "dram",
                      .keep = plan.keeping.size(),
                      .spill = plan.spilling.size(),
                      .predicted_step_seconds = plan.prediction.step_seconds};
}

/// The plan of a step with one micro-batch more in each process, which the weights of the others serve, too.
LongerStep with_a_micro_batch_more(const FitRequest& request) {
  auto asked = request;
  auto& description = asked.description;
  const auto times = 1 + 1 / static_cast<double>(std::max<std::uint64_t>(1, description.count_own_accumulation()));
  for (auto* tokens : {&description.tokens, &description.step_tokens}) {
    *tokens = static_cast<std::uint64_t>(std::ceil(static_cast<double>(*tokens) * times));
  }
  const auto tiles = description.count_own_tiles();
  if (description.accumulation > 0) description.accumulation += description.world.size;
  description.micro_batches += description.world.size * tiles;
  scale(asked.rates, times);
  const auto plan = plan_of(asked, description.layout());
  if (!plan) return {};
  return {.fits = true,
          .predicted_step_seconds = plan->prediction.step_seconds,
          .tokens_per_second = rate_of(asked, *plan)};
}

}  // namespace

Fits find_fits(const FitRequest& request) {
  check(request);
  Cells cells(request);
  Fits out;
  out.fit_table = fit_table(request, cells);  // first: from the small budgets, of which the large ones follow
  out.longest_sequence = longest_sequence(request, cells);
  out.a_micro_batch_more = with_a_micro_batch_more(request);
  out.a_gib_more = with_a_gib_more(request);
  return out;
}

}  // namespace spillway::plan
