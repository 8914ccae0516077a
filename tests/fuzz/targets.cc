#include "tests/fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>
#include <vector>

#include "spillway/base/error.h"
#include "spillway/execute/read_back.h"
#include "spillway/journal/commit.h"
#include "spillway/journal/manifest.h"
#include "spillway/journal/record.h"
#include "spillway/machine/profile_json.h"
#include "spillway/plan/json.h"
#include "spillway/state/header.h"
#include "spillway/state/shards.h"
#include "spillway/storage/checksum.h"
#include "spillway/storage/superblock.h"
#include "tests/execute/planned.h"
#include "tests/journal/journal_world.h"

namespace spillway::fuzz {
namespace {

std::string_view words(Input in) {
  return {reinterpret_cast<const char*>(in.data()), in.size()};
}

template <class Body>
void refused_or_not(Body body) {
  try {
    body();
  } catch (const Error&) {
  }
}

/// Magic, then the checksum of `bytes` from byte 16 on, as records, commits and manifests have it.
void put_right(std::span<std::byte> bytes) {
  if (bytes.size() < 16) return;
  const std::uint64_t sum = storage::checksum(bytes.subspan(16), 0);
  std::memcpy(bytes.data() + 8, &sum, sizeof sum);
}

/// Bytes of the record, or commit, that begins here; 0: none does.
std::size_t length_of(std::span<const std::byte> at) {
  constexpr std::string_view kRecord = "SPWRECRD";
  std::uint32_t bytes = 0;
  if (at.size() < 56 || std::memcmp(at.data(), kRecord.data(), kRecord.size()) != 0) return 0;
  std::memcpy(&bytes, at.data() + 24, sizeof bytes);
  return bytes >= 56 && bytes <= at.size() ? bytes : 0;
}

/// Every record and commit among the bytes.
void put_all_right(std::span<std::byte> bytes) {
  for (std::size_t at = 0; at + 56 <= bytes.size(); at += 8) {
    if (const auto length = length_of(bytes.subspan(at)); length > 0) put_right(bytes.subspan(at, length));
  }
}

/// 8 bytes of `in` each: which of `count`, the new byte, and where.
template <class Change>
void for_changes(Input in, const Change& change) {
  for (; in.size() >= 8; in = in.subspan(8)) {
    std::uint32_t at = 0;
    std::memcpy(&at, in.data() + 4, sizeof at);
    change(in[0], std::byte{in[1]}, at);
  }
}

/// A run of three durable steps, of which the second was skipped, as it lies in its volume.
class LeftRun {
 public:
  LeftRun() : planned_({.placement = {1, 1, 1, 1}}) {
    execute::Run run(planned_.run_plan(), planned_.volumes(), 1, {});
    execute::test::fill(run, planned_);
    for (const bool finite : {true, false, true}) {
      execute::test::train_step(run, planned_, finite);
      run.commit("");
    }
    run.wait_durable();
  }

  /// Its records, without the zeros behind them.
  [[nodiscard]] std::vector<std::byte> records() const {
    std::vector<std::byte> out(planned_.budget.records);
    std::ifstream file(planned_.volume(), std::ios::binary);
    file.seekg(storage::kSuperblockExtent);
    file.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
    while (out.size() > 1 && out.back() == std::byte{0}) out.pop_back();
    return out;
  }
  void write(std::span<const std::byte> records) const {
    std::fstream file(planned_.volume(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(storage::kSuperblockExtent);
    file.write(reinterpret_cast<const char*>(records.data()), static_cast<std::streamsize>(records.size()));
  }
  /// Every value, as an export reads it: snapshots, and the updates that they lack.
  void read_back() const {
    execute::ReadBack back(planned_.run_plan(), planned_.volumes(), 1, std::nullopt);
    for (std::size_t t = 0; t < planned_.layout.tensors().size(); ++t) {
      std::vector<float> values(planned_.layout.tensors()[t].elements);
      back.fetch(t, 0, values);
    }
  }

 private:
  const execute::test::Planned planned_;
};

}  // namespace

void header(Input in) {
  if (in.size() < 4) return;
  std::uint32_t bytes = 0;
  std::memcpy(&bytes, in.data(), sizeof bytes);
  refused_or_not([&] {
    const auto tensors = state::parse_header(words(in.subspan(4)), bytes, "a.safetensors");
    Bytes at = 0;
    for (const auto& tensor : tensors) {
      if (tensor.begin != at || tensor.end - tensor.begin != tensor.elements * tensor.element_bytes) std::abort();
      at = tensor.end;
    }
    if (at != bytes) std::abort();
  });
}

void index(Input in) {
  static const int file = ::memfd_create("index", 0);
  if (::ftruncate(file, 0) != 0 || ::pwrite(file, in.data(), in.size(), 0) < 0) return;
  refused_or_not([&] { (void)state::read_index("/proc/self/fd/" + std::to_string(file)); });
}

void superblock(Input in) {
  std::vector<std::byte> page(storage::kSuperblockBytes);
  std::memcpy(page.data(), in.data(), std::min(in.size(), page.size()));
  if (!in.empty() && in.back() % 2 == 1) {
    const std::uint64_t sum = storage::checksum(std::span(page).first(page.size() - 8), 0);
    std::memcpy(page.data() + page.size() - 8, &sum, sizeof sum);
  }
  storage::Superblock out;
  if (storage::decode(page, out) == storage::SuperblockState::valid) {
    std::vector<std::byte> again(page.size());
    storage::encode(out, again);
  }
}

void records(Input in) {
  std::vector<std::byte> bytes(in.size());
  if (!in.empty()) std::memcpy(bytes.data(), in.data(), in.size());
  if (const auto length = length_of(bytes); length > 0) {
    put_right(std::span(bytes).first(length));
  } else {
    put_right(bytes);
  }
  journal::RecordHead head;
  std::vector<journal::Piece> pieces;
  (void)journal::decode(bytes, 1, head, pieces);
  journal::Commit commit;
  (void)journal::decode(bytes, 1, commit);
  refused_or_not([&] { (void)journal::decode_manifest(bytes, 1); });
}

void recovery(Input in) {
  static const auto left = [] {
    auto world = std::make_unique<journal::testing::World>(
        journal::testing::WorldSetup{.seed = 3, .paths = 2, .steps = 4, .restarts = false, .cuts = false});
    if (!world->run().empty()) std::abort();
    return world;
  }();
  auto remains = left->live();
  for_changes(in, [&](std::size_t path, std::byte value, std::uint32_t at) {
    auto& bytes = remains[path % remains.size()].metadata;
    if (!bytes.empty()) bytes[at % bytes.size()] = value;
  });
  for (auto& path : remains) put_all_right(path.metadata);
  journal::testing::RemainsMedia media(remains);
  refused_or_not([&] { (void)journal::recover(left->spec(), media, {.pinned = left->checkpoints()}); });
}

void replay(Input in) {
  static const LeftRun left;
  static const auto whole = left.records();
  auto records = whole;
  for_changes(in, [&](std::size_t, std::byte value, std::uint32_t at) { records[at % records.size()] = value; });
  put_all_right(records);
  left.write(records);
  refused_or_not([&] { left.read_back(); });
}

void profile(Input in) {
  refused_or_not([&] { (void)machine::from_json(words(in), "a profile"); });
}

void description(Input in) {
  refused_or_not([&] { (void)plan::parse_description(std::string(words(in))); });
}

}  // namespace spillway::fuzz
