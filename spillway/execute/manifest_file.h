// The manifest in a checkpoint's directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "spillway/journal/manifest.h"
#include "spillway/journal/record_check.h"
#include "spillway/state/ownership.h"

namespace spillway::execute {

inline constexpr const char* kManifestName = "manifest.bin";
/// The name of the manifest of a process of that world, whose rank is the number of its shard: kManifestName in a world
/// of one, else "manifest.shard-3.bin".
[[nodiscard]] std::string manifest_name(const state::World& world);

/// Throws Error(bad_input) when there is none, or one of another run, Error(corrupt) when it is damaged, or says what
/// `check` finds that it cannot.
[[nodiscard]] journal::Manifest read_manifest(const std::filesystem::path& directory, std::uint64_t identity,
                                              const journal::RecordCheck& check, const state::World& world = {});

/// Durable when it returns. When it throws there is no file.
void write_manifest(const std::filesystem::path& directory, std::span<const std::byte> bytes,
                    const state::World& world = {});

}  // namespace spillway::execute
