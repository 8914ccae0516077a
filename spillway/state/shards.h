// Which tensor goes to which file of a checkpoint, and the index that says so.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "spillway/base/bytes.h"

namespace spillway::state {

/// Tensor numbers of each shard for tensors of these sizes, in the order given, as transformers' save_pretrained cuts
/// them: a shard is closed before it would exceed `max_shard`; a tensor larger than that is a shard of its own, placed
/// before the one being filled.
[[nodiscard]] std::vector<std::vector<std::size_t>> cut_shards(const std::vector<Bytes>& sizes, Bytes max_shard);

/// "model.safetensors", or "model-00002-of-00003.safetensors" for number 1 of 3.
[[nodiscard]] std::string shard_name(const std::string& base, std::size_t number, std::size_t count);

/// Whether `name` is a file that a checkpoint of this base may have, in any number of shards: shards, index, and what a
/// killed writer left of them (".partial").
[[nodiscard]] bool is_checkpoint_file(const std::string& name, const std::string& base);

/// Tensor name to the name of the file it lies in.
using WeightMap = std::map<std::string, std::string>;

/// Throws Error(bad_input) for a file that is missing, too long, not JSON, without a weight_map of strings, with a key
/// twice, or with a file name that leaves the directory.
[[nodiscard]] WeightMap read_index(const std::filesystem::path& file);

/// Text of an index as save_pretrained writes it.
[[nodiscard]] std::string serialize_index(const WeightMap& files, std::uint64_t parameters, Bytes total);

}  // namespace spillway::state
