#include "spillway/plan/fits.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "spillway/base/error.h"
#include "spillway/plan/fits_json.h"
#include "spillway/plan/largest.h"
#include "spillway/plan/planner.h"

namespace spillway::plan {
namespace {

constexpr std::uint64_t kGrain = 64;
constexpr std::uint64_t kFarther = 4;  // times the sequence that was rehearsed: beyond that the line says little

void check(const FitRequest& request) {
  if (request.sequence > 0 && request.batch > 0) return;
  throw Error(ErrorCode::bad_input, text("what fits is asked of ", request.batch, " rows of ", request.sequence,
                                         " tokens; both must be above 0"));
}

Bytes changed(Bytes bytes, double per_token, double more_tokens) {
  return static_cast<Bytes>(std::max(0.0, static_cast<double>(bytes) + per_token * more_tokens));
}

/// With micro-batches of `batch` rows of `sequence` tokens.
FitRequest with(const FitRequest& request, std::uint64_t sequence, std::uint64_t batch) {
  auto out = request;
  const auto before = static_cast<double>(request.sequence * request.batch);
  const auto tokens = static_cast<double>(sequence * batch);
  const auto times = tokens / before;
  out.description.tokens = static_cast<std::uint64_t>(std::ceil(static_cast<double>(out.description.tokens) * times));
  out.budget.work = changed(out.budget.work, request.work_per_token, tokens - before);
  if (out.budget.device) {
    out.budget.device->work = changed(out.budget.device->work, request.device_per_token, tokens - before);
  }
  auto& rates = out.rates;
  for (auto* seconds : {&rates.forward, &rates.backward, &rates.head_loss, &rates.head_gradient, &rates.tail_forward,
                        &rates.tail_backward, &rates.between}) {
    *seconds *= times;
  }
  return out;
}

/// None: it does not fit.
std::optional<double> tokens_per_second(const FitRequest& request) {
  try {
    const auto plan = plan_alone(request.description, request.description.layout(), request.budget, request.rates);
    return static_cast<double>(request.description.tokens) / plan.prediction.step_seconds;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    return std::nullopt;
  }
}

}  // namespace

nlohmann::json fits_json(const FitTable& table) {
  return {{"dram_budgets", table.budgets},
          {"sequences", table.sequences},
          {"batches", table.batches},
          {"tokens_per_second", table.rates}};
}

FitTable fit_table(const FitRequest& request) {
  check(request);
  FitTable out{.budgets = {request.budget.dram / 2, request.budget.dram, request.budget.dram * 2},
               .sequences = {std::max<std::uint64_t>(1, request.sequence / 2), request.sequence, request.sequence * 2,
                             request.sequence * 4},
               .batches = {request.batch, request.batch * 2},
               .rates = {}};
  if (request.batch > 1) out.batches.insert(out.batches.begin(), request.batch / 2);
  out.fill([&](Bytes budget, std::uint64_t sequence, std::uint64_t batch) {
    auto other = with(request, sequence, batch);
    other.budget.dram = budget;
    return tokens_per_second(other).value_or(0);
  });
  return out;
}

std::uint64_t longest_sequence(const FitRequest& request) {
  check(request);
  const auto grain = std::min(kGrain, request.sequence);
  const auto fits = [&](std::uint64_t grains) {
    return tokens_per_second(with(request, grains * grain, request.batch)).has_value();
  };
  return grain * largest(request.sequence * kFarther / grain, fits);
}

std::string fits_json(const FitRequest& request) {
  return nlohmann::json({{"longest_sequence", longest_sequence(request)}, {"fit_table", fits_json(fit_table(request))}})
      .dump();
}

}  // namespace spillway::plan
