// Bytes that the tasks of the network move: weights of passes from the processes that have them, and gradients to them.
#pragma once

#include <vector>

#include "spillway/execute/arenas.h"
#include "spillway/execute/gradient_exchange.h"
#include "spillway/execute/network_lane.h"
#include "spillway/execute/run_plan.h"

namespace spillway::execute {

class WeightExchange final : public NetworkWork {
 public:
  /// `gradients` may be null where tasks bring weights alone. All references must outlive it.
  WeightExchange(const RunPlan& plan, Arenas arenas, GradientExchange* gradients)
      : plan_(plan), arenas_(arenas), gradients_(gradients) {}

  [[nodiscard]] std::vector<network::Message> messages(const plan::Task& task) override;
  void arrived(const plan::Task& task) override;
  [[nodiscard]] bool adds(const plan::Task& task) const override;

 private:
  [[nodiscard]] std::vector<network::Message> gather(const plan::Pass& pass, plan::Op op) const;

  const RunPlan& plan_;
  const Arenas arenas_;
  GradientExchange* const gradients_;
};

}  // namespace spillway::execute
