// The fields of settings by name.
#pragma once

#include <array>
#include <tuple>

#include "spillway/base/field.h"
#include "spillway/machine/profile_fields.h"
#include "spillway/plan/settings.h"

namespace spillway {

template <>
inline constexpr std::array kWords<plan::NodeKind> = {plan::kNodes[0].word, plan::kNodes[1].word, plan::kNodes[2].word};
template <>
inline constexpr std::array kWords<plan::Durability> = {plan::name_of(plan::Durability::none),
                                                        plan::name_of(plan::Durability::checkpoint),
                                                        plan::name_of(plan::Durability::step)};
template <>
inline constexpr std::array kWords<plan::Updates> = {plan::name_of(plan::Updates::automatic),
                                                     plan::name_of(plan::Updates::deferred),
                                                     plan::name_of(plan::Updates::early)};
template <>
inline constexpr std::array kWords<plan::Spill> = {"never", "auto", "all"};

template <>
inline constexpr auto kFields<plan::SavedActivations> = std::tuple(
    Field("blocks", &plan::SavedActivations::blocks), Field("token_bytes", &plan::SavedActivations::token_bytes),
    Field("on_device", &plan::SavedActivations::on_device), Field("layers", &plan::SavedActivations::layers),
    Field("keep", &plan::SavedActivations::keep), Field("why", &plan::SavedActivations::why),
    Field("spill", &plan::SavedActivations::spill),
    Field("spilled_token_bytes", &plan::SavedActivations::spilled_token_bytes),
    Field("graph_token_bytes", &plan::SavedActivations::graph_token_bytes));

template <>
inline constexpr auto kFields<plan::Saving> = std::tuple(
    Field("saves", &plan::Saving::saves), Field("limit", &plan::Saving::limit), Field("there", &plan::Saving::there),
    Field("whole", &plan::Saving::whole), Field("freed", &plan::Saving::freed), Field("small", &plan::Saving::small),
    Field("beside", &plan::Saving::beside), Field("model_only", &plan::Saving::model_only),
    Field("copies", &plan::Saving::copies), Field("adapters", &plan::Saving::adapters),
    Field("converted", &plan::Saving::converted));

template <>
inline constexpr auto kFields<plan::FileSystem> = std::tuple(Field("name", &plan::FileSystem::name),
                                                             Field("free", &plan::FileSystem::free),
                                                             Field("paths", &plan::FileSystem::paths),
                                                             Field("output", &plan::FileSystem::output));

template <>
inline constexpr auto kFields<plan::PathSettings> = std::tuple(Field("directory", &plan::PathSettings::directory),
                                                               Field("device", &plan::PathSettings::device),
                                                               Field("capacity", &plan::PathSettings::capacity),
                                                               Field("endurance", &plan::PathSettings::endurance),
                                                               Field("remote", &plan::PathSettings::remote),
                                                               Field("node", &plan::PathSettings::node));

template <>
inline constexpr auto kFields<plan::NodeSettings> =
    std::tuple(Field("kind", &plan::NodeSettings::kind), Field("id", &plan::NodeSettings::id),
               Field("capacity", &plan::NodeSettings::capacity), Field("directory", &plan::NodeSettings::directory),
               Field("anywhere", &plan::NodeSettings::anywhere), Field("limit", &plan::NodeSettings::limit),
               Field("update", &plan::NodeSettings::update), Field("update_thread", &plan::NodeSettings::update_thread),
               Field("read", &plan::NodeSettings::read));

template <>
inline constexpr auto kFields<plan::DeviceSettings> = std::tuple(
    Field("name", &plan::DeviceSettings::name), Field("stream", &plan::DeviceSettings::stream),
    Field("memory", &plan::DeviceSettings::memory), Field("work", &plan::DeviceSettings::work),
    Field("in_dram", &plan::DeviceSettings::in_dram), Field("to_device", &plan::DeviceSettings::to_device),
    Field("from_device", &plan::DeviceSettings::from_device), Field("links", &plan::DeviceSettings::links),
    Field("latency", &plan::DeviceSettings::latency), Field("update", &plan::DeviceSettings::update),
    Field("bounded", &plan::DeviceSettings::bounded), Field("weight", &plan::DeviceSettings::weight),
    Field("activation", &plan::DeviceSettings::activation), Field("state", &plan::DeviceSettings::state),
    Field("device_updated", &plan::DeviceSettings::device_updated), Field("grad", &plan::DeviceSettings::grad),
    Field("applies_changes", &plan::DeviceSettings::applies_changes));

template <>
inline constexpr auto kFields<plan::PlacementSettings> = std::tuple(
    Field("weight", &plan::PlacementSettings::weight), Field("state", &plan::PlacementSettings::state),
    Field("grad", &plan::PlacementSettings::grad), Field("activation", &plan::PlacementSettings::activation));

template <>
inline constexpr auto kFields<plan::PassSeconds> = std::tuple(
    Field("forward", &plan::PassSeconds::forward), Field("backward", &plan::PassSeconds::backward),
    Field("kept_forward", &plan::PassSeconds::kept_forward), Field("kept_backward", &plan::PassSeconds::kept_backward),
    Field("head_loss", &plan::PassSeconds::head_loss), Field("head_gradient", &plan::PassSeconds::head_gradient),
    Field("tail_forward", &plan::PassSeconds::tail_forward), Field("tail_backward", &plan::PassSeconds::tail_backward),
    Field("between", &plan::PassSeconds::between), Field("entry_forward", &plan::PassSeconds::entry_forward),
    Field("entry_backward", &plan::PassSeconds::entry_backward));

template <>
inline constexpr auto kFields<plan::EngineSettings> = std::tuple(
    Field("dram_budget", &plan::EngineSettings::dram_budget),
    Field("process_bytes", &plan::EngineSettings::process_bytes),
    Field("work_bytes", &plan::EngineSettings::work_bytes), Field("keeps_logits", &plan::EngineSettings::keeps_logits),
    Field("saved_activations", &plan::EngineSettings::saved_activations),
    Field("placement", &plan::EngineSettings::placement), Field("window", &plan::EngineSettings::window),
    Field("storage", &plan::EngineSettings::storage), Field("near", &plan::EngineSettings::near),
    Field("nodes", &plan::EngineSettings::nodes), ByHand{Field("profile", &plan::EngineSettings::profile)},
    Field("seconds", &plan::EngineSettings::seconds), Field("durability", &plan::EngineSettings::durability),
    Field("checkpoints", &plan::EngineSettings::checkpoints), Field("resumes", &plan::EngineSettings::resumes),
    Field("update_schedule", &plan::EngineSettings::update_schedule),
    Field("speculative_updates", &plan::EngineSettings::speculative_updates),
    Field("clipping", &plan::EngineSettings::clipping), Field("piece_period", &plan::EngineSettings::piece_period),
    Field("update_cores", &plan::EngineSettings::update_cores), Field("threads", &plan::EngineSettings::threads),
    Field("run", &plan::EngineSettings::run), Field("overwrite", &plan::EngineSettings::overwrite),
    Field("erase", &plan::EngineSettings::erase), Field("keep", &plan::EngineSettings::keep),
    Field("device", &plan::EngineSettings::device), Field("network_inside", &plan::EngineSettings::network_inside),
    Field("saving", &plan::EngineSettings::saving), Field("file_systems", &plan::EngineSettings::file_systems));

}  // namespace spillway
