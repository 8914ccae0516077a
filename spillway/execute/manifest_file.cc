#include "spillway/execute/manifest_file.h"

#include <system_error>

#include "spillway/base/error.h"
#include "spillway/state/file.h"

namespace spillway::execute {

std::string manifest_name(const state::World& world) {
  return world.size > 1 ? text("manifest.shard-", world.rank, ".bin") : kManifestName;
}

journal::Manifest read_manifest(const std::filesystem::path& directory, std::uint64_t identity,
                                const journal::RecordCheck& check, const state::World& world) {
  const auto file = directory / manifest_name(world);
  const auto bytes = journal::read_manifest_file(file);
  try {
    auto manifest = journal::decode_manifest(bytes, identity);
    if (const auto wrong = check.objection(manifest); !wrong.empty()) {
      throw Error(ErrorCode::corrupt, text("the manifest of a checkpoint says what cannot be: ", wrong));
    }
    return manifest;
  } catch (const Error& error) {
    std::string advice;
    if (error.code() == ErrorCode::corrupt) {
      advice = text(". Put the file back from a copy, or remove ", directory.parent_path().string(),
                    ": its state cannot be found without the file");
    }
    throw Error(error.code(), text(file.string(), ": ", error.what(), advice), 0, file.string());
  }
}

void write_manifest(const std::filesystem::path& directory, std::span<const std::byte> bytes,
                    const state::World& world) {
  const auto name = directory / manifest_name(world);
  try {
    auto file = state::File::create(name, bytes.size(), state::kPrivate);
    file.write(0, bytes);
    file.finish();
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(name, ignored);
    throw;
  }
}

}  // namespace spillway::execute
