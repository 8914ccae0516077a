// The manifest in a checkpoint's directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "spillway/journal/manifest.h"
#include "spillway/journal/record_check.h"

namespace spillway::execute {

inline constexpr const char* kManifestName = "manifest.bin";

/// Throws Error(bad_input) when there is none, or one of another run, Error(corrupt) when it is damaged, or says what
/// `check` finds that it cannot.
[[nodiscard]] journal::Manifest read_manifest(const std::filesystem::path& directory, std::uint64_t identity,
                                              const journal::RecordCheck& check);

/// Durable when it returns. When it throws there is no file.
void write_manifest(const std::filesystem::path& directory, std::span<const std::byte> bytes);

}  // namespace spillway::execute
