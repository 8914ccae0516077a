// EngineStore: state in and out, of a run or of what was read back.
#include "spillway/engine_parts.h"

namespace spillway {

Recovery EngineStore::start(const OpenOptions& open_options) {
  return parts_->start(open_options);
}
Recovery EngineStore::read_back(const std::optional<std::filesystem::path>& checkpoint, std::int64_t at_most) {
  return parts_->read_back(checkpoint, at_most);
}
Verification EngineStore::verify(const std::vector<std::filesystem::path>& pinned) const {
  return parts_->verify(pinned);
}
DurableStep EngineStore::durable_step() const {
  return parts_->durable_step();
}
DurableStep EngineStore::durable_step(const ShardVolumes& shard) const {
  return parts_->durable_step(shard);
}
Recovery EngineStore::redeal(const RedealOptions& options) {
  return parts_->redeal(options);
}
std::optional<std::int64_t> EngineStore::next_vote() {
  return parts_->votes().next();
}
void EngineStore::end_vote(std::int64_t step, std::int64_t minimum, const std::string& error) {
  parts_->votes().end(step, minimum, error);
}
void EngineStore::close() {
  parts_->close();
}
void EngineStore::give_up_volumes() {
  parts_->give_up_volumes();
}

void EngineStore::load_weights(const std::filesystem::path& checkpoint,
                               const std::map<std::string, std::string>& stored_names) {
  parts_->run().load_weights(checkpoint, stored_names);
}
void EngineStore::store_tensor(std::size_t tensor, std::uint64_t first, std::span<const float> values) {
  parts_->run().store(tensor, first, values);
}
void EngineStore::measure_tensor(std::size_t tensor, std::uint64_t first, std::span<const float> values) {
  parts_->run().measure(tensor, first, values);
}
void EngineStore::fetch_tensor(std::size_t tensor, std::uint64_t first, std::span<float> values) {
  if (auto* reader = parts_->reader()) return reader->fetch(tensor, first, values);
  parts_->run().fetch(tensor, first, values);
}
void EngineStore::save_weights(const std::filesystem::path& directory, Bytes max_shard,
                               const std::map<std::string, std::string>& stored_names) {
  const state::SaveOptions options{.max_shard = max_shard, .names = stored_names};
  if (auto* reader = parts_->reader()) return reader->save_weights(directory, options);
  parts_->run().save_weights(directory, options);
}
void EngineStore::save_state(const std::filesystem::path& directory) {
  if (auto* reader = parts_->reader()) return reader->save_state(directory);
  parts_->run().save_state(directory);
}
state::StateFormat EngineStore::load_state(const std::filesystem::path& directory, const std::filesystem::path& weights,
                                           std::int64_t step, const std::map<std::string, std::string>& stored_names) {
  return parts_->run().load_state(directory, weights, step, stored_names);
}
void EngineStore::flush() {
  parts_->run().flush();
}

void EngineStore::commit(std::string_view payload) {
  parts_->run().commit(payload);
}
void EngineStore::set_step(std::uint64_t step) {
  parts_->run().set_step(step);
}
void EngineStore::save_manifest(const std::filesystem::path& directory) {
  parts_->run().save_manifest(directory);
}
void EngineStore::release_manifest(std::span<const std::byte> manifest) {
  parts_->run().release_manifest(manifest);
}
std::vector<std::byte> EngineStore::leave(std::string_view payload) {
  return parts_->run().leave(payload);
}
void EngineStore::take_back() {
  parts_->run().take_back();
}

}  // namespace spillway
