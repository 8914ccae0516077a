// The fields of a plan's summary by name, which are those of plan.json.
#pragma once

#include <tuple>

#include "spillway/base/field.h"
#include "spillway/plan/summary.h"

namespace spillway {

template <>
inline constexpr auto kFields<plan::PlannedTier> = std::tuple(Field("name", &plan::PlannedTier::name),
                                                              Field("capacity", &plan::PlannedTier::capacity),
                                                              Field("planned_peak", &plan::PlannedTier::planned_peak));

template <>
inline constexpr auto kFields<plan::PlannedBytes> = std::tuple(Field("class_", &plan::PlannedBytes::class_),
                                                               Field("tier", &plan::PlannedBytes::tier),
                                                               Field("bytes", &plan::PlannedBytes::bytes));

template <>
inline constexpr auto kFields<plan::LinkBytes> = std::tuple(Field("to_device", &plan::LinkBytes::to_device),
                                                            Field("from_device", &plan::LinkBytes::from_device));

template <>
inline constexpr auto kFields<plan::PathBytes> = std::tuple(Field("read", &plan::PathBytes::read),
                                                            Field("written", &plan::PathBytes::written));

template <>
inline constexpr auto kFields<plan::NetworkBytes> = std::tuple(Field("sent", &plan::NetworkBytes::sent),
                                                               Field("received", &plan::NetworkBytes::received));

template <>
inline constexpr auto kFields<plan::SpillSeconds> = std::tuple(Field("paths", &plan::SpillSeconds::paths),
                                                               Field("copy", &plan::SpillSeconds::copy),
                                                               Field("recompute", &plan::SpillSeconds::recompute));

template <>
inline constexpr auto kFields<plan::PlannedActivations> =
    std::tuple(Field("layers", &plan::PlannedActivations::layers), Field("keep", &plan::PlannedActivations::keep),
               Field("blocks", &plan::PlannedActivations::blocks), Field("bytes", &plan::PlannedActivations::bytes),
               Field("tier", &plan::PlannedActivations::tier),
               Field("asked", &plan::PlannedActivations::asked, InFile::write_always()),
               Field("why", &plan::PlannedActivations::why), Field("spill", &plan::PlannedActivations::spill),
               Field("spilled_blocks", &plan::PlannedActivations::spilled_blocks),
               Field("spilled_bytes", &plan::PlannedActivations::spilled_bytes),
               Field("spill_tier", &plan::PlannedActivations::spill_tier),
               Field("spill_why", &plan::PlannedActivations::spill_why),
               Field("seconds_of_a_layer", &plan::PlannedActivations::seconds_of_a_layer));

template <>
inline constexpr auto kFields<plan::PlannedFeatures> = std::tuple(Field("bytes", &plan::PlannedFeatures::bytes),
                                                                  Field("tier", &plan::PlannedFeatures::tier));

template <>
inline constexpr auto kFields<plan::PlannedBlocks> =
    std::tuple(Field("state_and_update", &plan::PlannedBlocks::state_and_update),
               Field("streamed_state_and_update", &plan::PlannedBlocks::streamed_state_and_update),
               Field("weight", &plan::PlannedBlocks::weight), Field("streamed", &plan::PlannedBlocks::streamed),
               Field("durable_bytes_per_step", &plan::PlannedBlocks::durable_bytes_per_step),
               Field("why", &plan::PlannedBlocks::why),
               Field("matrices_that_take_changes", &plan::PlannedBlocks::matrices_that_take_changes));

template <>
inline constexpr auto kFields<plan::PlannedValue> =
    std::tuple(Field("value", &plan::PlannedValue::value), Field("fits", &plan::PlannedValue::fits),
               Field("chosen", &plan::PlannedValue::chosen),
               Field("predicted_step_seconds", &plan::PlannedValue::predicted_step_seconds),
               Field("bytes_per_step", &plan::PlannedValue::bytes_per_step));

template <>
inline constexpr auto kFields<plan::PlannedDecision> = std::tuple(Field("name", &plan::PlannedDecision::name),
                                                                  Field("title", &plan::PlannedDecision::title),
                                                                  Field("reason", &plan::PlannedDecision::reason),
                                                                  Field("compared", &plan::PlannedDecision::compared));

template <>
inline constexpr auto kFields<plan::PlannedPieces> = std::tuple(Field("pieces", &plan::PlannedPieces::pieces),
                                                                Field("in_memory", &plan::PlannedPieces::in_memory),
                                                                Field("on_device", &plan::PlannedPieces::on_device));

template <>
inline constexpr auto kFields<plan::RemotePath> = std::tuple(Field("name", &plan::RemotePath::name),
                                                             Field("node", &plan::RemotePath::node));

template <>
inline constexpr auto kFields<plan::RemotePaths> = std::tuple(Field("paths", &plan::RemotePaths::paths),
                                                              Field("seconds", &plan::RemotePaths::seconds,
                                                                    InFile::write_always()),
                                                              Field("why", &plan::RemotePaths::why));

template <>
inline constexpr auto kFields<plan::DriveLife> = std::tuple(Field("rated", &plan::DriveLife::rated),
                                                            Field("assumed", &plan::DriveLife::assumed),
                                                            Field("written_per_day", &plan::DriveLife::written_per_day),
                                                            Field("days", &plan::DriveLife::days));

template <>
inline constexpr auto kFields<plan::PlannedSaving> = std::tuple(
    Field("file_system", &plan::PlannedSaving::file_system), Field("free", &plan::PlannedSaving::free),
    Field("volumes", &plan::PlannedSaving::volumes), Field("checkpoint_bytes", &plan::PlannedSaving::checkpoint_bytes),
    Field("weights", &plan::PlannedSaving::weights),
    Field("checkpoints_at_once", &plan::PlannedSaving::checkpoints_at_once),
    Field("bytes", &plan::PlannedSaving::bytes));

template <>
inline constexpr auto kFields<plan::FullPlan> =
    std::tuple(Field("predicted_step_seconds", &plan::FullPlan::predicted_step_seconds),
               Field("without_products_seconds", &plan::FullPlan::without_products_seconds),
               Field("path_bytes_per_step", &plan::FullPlan::path_bytes_per_step),
               Field("device_bytes_per_step", &plan::FullPlan::device_bytes_per_step));

template <>
inline constexpr auto kFields<plan::PlannedReduction> = std::tuple(
    Field("matrices", &plan::PlannedReduction::matrices), Field("elements", &plan::PlannedReduction::elements),
    Field("gradient_bytes", &plan::PlannedReduction::gradient_bytes),
    Field("gradient_bytes_in_full", &plan::PlannedReduction::gradient_bytes_in_full),
    Field("helps", &plan::PlannedReduction::helps), Field("in_full", &plan::PlannedReduction::in_full));

template <>
inline constexpr auto kFields<plan::DurabilityCost> = std::tuple(Field("written", &plan::DurabilityCost::written),
                                                                 Field("seconds", &plan::DurabilityCost::seconds));

template <>
inline constexpr auto kFields<plan::PlannedUpdates> =
    std::tuple(Field("asked", &plan::PlannedUpdates::asked), Field("schedule", &plan::PlannedUpdates::schedule),
               Field("early_chunks", &plan::PlannedUpdates::early_chunks),
               Field("chunks", &plan::PlannedUpdates::chunks), Field("undo_bytes", &plan::PlannedUpdates::undo_bytes),
               Field("seconds_saved", &plan::PlannedUpdates::seconds_saved),
               Field("speculative", &plan::PlannedUpdates::speculative));

template <>
inline constexpr auto kFields<plan::PlannedSeconds> = std::tuple(
    Field("compute", &plan::PlannedSeconds::compute), Field("transfer", &plan::PlannedSeconds::transfer),
    Field("update", &plan::PlannedSeconds::update), Field("stall", &plan::PlannedSeconds::stall),
    Field("to_device", &plan::PlannedSeconds::to_device), Field("from_device", &plan::PlannedSeconds::from_device),
    Field("device_update", &plan::PlannedSeconds::device_update), Field("network", &plan::PlannedSeconds::network));

template <>
inline constexpr auto kFields<plan::PlannedLookahead> = std::tuple(
    Field("state_read", &plan::PlannedLookahead::state_read), Field("write", &plan::PlannedLookahead::write),
    Field("weight_read", &plan::PlannedLookahead::weight_read), Field("backward", &plan::PlannedLookahead::backward),
    Field("grad_write", &plan::PlannedLookahead::grad_write), Field("head", &plan::PlannedLookahead::head),
    Field("device", &plan::PlannedLookahead::device));

template <>
inline constexpr auto kFields<plan::PlanSummary> = std::tuple(
    Field("fits", &plan::PlanSummary::fits), Field("parameters", &plan::PlanSummary::parameters),
    Field("learning_parameters", &plan::PlanSummary::learning_parameters),
    Field("weight_dtype", &plan::PlanSummary::weight_dtype), Field("compute_dtype", &plan::PlanSummary::compute_dtype),
    Field("optimizer", &plan::PlanSummary::optimizer), Field("state_format", &plan::PlanSummary::state_format),
    Field("bytes_per_parameter", &plan::PlanSummary::bytes_per_parameter),
    Field("kept_logits", &plan::PlanSummary::kept_logits), Field("tiers", &plan::PlanSummary::tiers),
    Field("bytes", &plan::PlanSummary::bytes),
    Field("device_bytes_per_step", &plan::PlanSummary::device_bytes_per_step),
    Field("boundary_activations", &plan::PlanSummary::boundary_activations),
    Field("saved_activations", &plan::PlanSummary::saved_activations),
    Field("image_features", &plan::PlanSummary::image_features),
    Field("device_blocks", &plan::PlanSummary::device_blocks), Field("pieces", &plan::PlanSummary::pieces),
    Field("decisions", &plan::PlanSummary::decisions),
    Field("path_bytes_per_step", &plan::PlanSummary::path_bytes_per_step),
    Field("drive_life", &plan::PlanSummary::drive_life), Field("far_drives", &plan::PlanSummary::far_drives),
    Field("saving", &plan::PlanSummary::saving), Field("subspaces", &plan::PlanSummary::subspaces),
    Field("durability", &plan::PlanSummary::durability),
    Field("durability_per_step", &plan::PlanSummary::durability_per_step),
    Field("updates", &plan::PlanSummary::updates),
    Field("predicted_step_seconds", &plan::PlanSummary::predicted_step_seconds),
    Field("tokens_per_second", &plan::PlanSummary::tokens_per_second), Field("world", &plan::PlanSummary::world),
    Field("rank", &plan::PlanSummary::rank), Field("machines", &plan::PlanSummary::machines),
    Field("network_sent", &plan::PlanSummary::network_sent),
    Field("network_received", &plan::PlanSummary::network_received),
    Field("between_machines", &plan::PlanSummary::between_machines),
    Field("own_weights", &plan::PlanSummary::own_weights), Field("bottleneck", &plan::PlanSummary::bottleneck),
    Field("seconds", &plan::PlanSummary::seconds), Field("lookahead", &plan::PlanSummary::lookahead));

}  // namespace spillway
