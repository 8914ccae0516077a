// The fields of descriptions by name.
#pragma once

#include <string>
#include <tuple>

#include "spillway/base/field.h"
#include "spillway/plan/description.h"

namespace spillway {

template <>
inline constexpr auto kFields<state::World> = std::tuple(Field("size", &state::World::size),
                                                         Field("rank", &state::World::rank),
                                                         Field("local", &state::World::local));

template <>
inline constexpr auto kFields<optim::RefitRule> =
    std::tuple(Field("check_every", &optim::RefitRule::check_every, InFile::write_always()),
               Field("threshold", &optim::RefitRule::threshold, InFile::write_always()),
               ByHand{Field("rotate_every", &optim::RefitRule::rotate_every)});

template <>
inline constexpr auto kFields<state::TensorSpec> = std::tuple(
    Field("name", &state::TensorSpec::name, InFile::require()),
    Field("shape", &state::TensorSpec::shape, InFile::require()),
    Field("decay", &state::TensorSpec::decay, InFile::write_always()),
    ByHand{Field("training", &state::TensorSpec::training)}, ByHand{Field("rank", &state::TensorSpec::rank)},
    ByHand{Field("nonzeros", &state::TensorSpec::nonzeros)},
    ByHand{View<state::TensorSpec, std::string>{
        "reduction", [](const state::TensorSpec& it) -> std::string { return it.reduction->word; },
        [](state::TensorSpec& it, std::string word) { it.reduction = &optim::parse_reduction(word); }}},
    ByHand{Field("form", &state::TensorSpec::form)}, Field("table", &state::TensorSpec::table, InFile::omit_default()),
    Field("pieces", &state::TensorSpec::pieces, InFile::omit_default()),
    Field("apart", &state::TensorSpec::apart, InFile::omit_default()),
    Field("asked", &state::TensorSpec::asked, InFile::omit_default()),
    Field("asked_by_piece", &state::TensorSpec::asked_by_piece, InFile::omit_default()));

template <>
inline constexpr auto kFields<state::BlockSpec> = std::tuple(Field("name", &state::BlockSpec::name, InFile::require()),
                                                             ByHand{Field("role", &state::BlockSpec::role)},
                                                             Field("tensors", &state::BlockSpec::tensors,
                                                                   InFile::require()));

/// Types, the optimizer and the format are words. A type of weights is one of fewer.
template <>
inline constexpr auto kFields<plan::Description> = std::tuple(
    View<plan::Description, std::string>{
        "compute_dtype", [](const plan::Description& it) -> std::string { return state::name_of(it.computes()); },
        [](plan::Description& it, std::string name) { it.compute_dtype = state::parse_compute_type(name); },
        InFile::require()},
    View<plan::Description, std::string>{
        "weight_dtype", [](const plan::Description& it) -> std::string { return state::name_of(it.weight_dtype); },
        [](plan::Description& it, std::string name) { it.weight_dtype = state::parse_weight_type(name); },
        InFile::write_always()},
    View<plan::Description, std::string>{
        "optimizer", [](const plan::Description& it) -> std::string { return it.optimizer->name; },
        [](plan::Description& it, std::string name) { it.optimizer = &optim::parse(name); }, InFile::write_always()},
    View<plan::Description, std::string>{
        "state_format", [](const plan::Description& it) -> std::string { return state::name_of(it.state_format); },
        [](plan::Description& it, std::string name) { it.state_format = state::parse_format(name); },
        InFile::write_always()},
    Field("seed", &plan::Description::seed, InFile::write_always(0x1p64)),
    Field("blocks", &plan::Description::blocks, InFile::require()),
    Field("tied_head", &plan::Description::tied_head, InFile::write_always()),
    Field("hidden_size", &plan::Description::hidden_size, InFile::require()),
    Field("tokens", &plan::Description::tokens, InFile::require()),
    Field("feature_bytes", &plan::Description::feature_bytes, InFile::omit_default()),
    Field("micro_batches", &plan::Description::micro_batches, InFile::require()),
    Field("accumulation", &plan::Description::accumulation, InFile::write_always()),
    Field("virtual_ranks", &plan::Description::virtual_ranks, InFile::write_always()),
    Field("shard_frozen", &plan::Description::shard_frozen, InFile::omit_default()),
    ByHand{Field("world", &plan::Description::world)}, ByHand{Field("step_tokens", &plan::Description::step_tokens)},
    Field("chunk_elements", &plan::Description::chunk_elements, InFile::omit_default()),
    ByHand{Field("refits", &plan::Description::refits)});

}  // namespace spillway
