#include "spillway/journal/commit.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "spillway/base/blank.h"
#include "spillway/base/error.h"
#include "spillway/storage/checksum.h"

namespace spillway::journal {
namespace {

constexpr std::array<char, 8> kCommitMagic = {'S', 'P', 'W', 'C', 'O', 'M', 'I', 'T'};
constexpr std::size_t kCommitChecked = 16;  ///< magic and checksum are not under the checksum
constexpr std::uint32_t kSkipped = 1, kNothing = 2, kHasLine = 4, kComplete = 8;
/// Bits of the flags that builds before them leave 0 and pass over: the slot, counted from 1, and the paths.
constexpr std::uint32_t kSlotShift = 8, kSlotMask = 0xFF, kPathsShift = 16;
static_assert(kMostPeriod + 5 < kSlotMask && kMostNamedPaths == 32 - kPathsShift);

struct CommitHeader {
  std::array<char, 8> magic;
  std::uint64_t checksum;
  std::uint64_t identity;
  std::uint32_t bytes;  ///< of all that follows, header included
  std::uint32_t generation;
  std::uint64_t step;
  std::uint64_t previous;
  std::uint32_t flags;
  std::uint32_t rank;
  std::uint32_t world;
  std::uint32_t ancestors;
  std::uint32_t gradients;  ///< words of 64 bits
  std::uint32_t payload;    ///< bytes
  std::array<std::byte, kUpdateBytes> update;
  std::uint32_t more;  ///< bytes of the update beside these, behind the payload
};
static_assert(sizeof(CommitHeader) == 128 && sizeof(Ancestor) == 16);

std::uint64_t checksum_of_commit(std::span<const std::byte> commit) {
  return storage::checksum(commit.subspan(kCommitChecked), 0);
}

/// `more`: of the update, beside what the header has.
Bytes size_of(std::size_t ancestors, std::size_t words, Bytes payload, Bytes more, bool has_line) {
  return sizeof(CommitHeader) + ancestors * sizeof(Ancestor) + words * sizeof(std::uint64_t) + payload + more +
         (has_line ? sizeof(std::uint64_t) : 0);
}

template <class T>
std::size_t put(std::span<std::byte> out, std::size_t at, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(out.data() + at, values.data(), values.size() * sizeof(T));
  return at + values.size() * sizeof(T);
}

template <class T>
std::size_t get(std::span<const std::byte> in, std::size_t at, std::size_t count, std::vector<T>& values) {
  values.resize(count);
  if (count != 0) std::memcpy(values.data(), in.data() + at, count * sizeof(T));
  return at + count * sizeof(T);
}

/// Bytes of the update that do not lie in the header.
Bytes more_of(const Commit& commit) {
  return commit.update.size() - kUpdateBytes;
}

std::uint32_t flags_of(const Commit& commit) {
  std::uint32_t out = (commit.skipped ? kSkipped : 0) | (commit.nothing ? kNothing : 0) |
                      (commit.line != 0 ? kHasLine : 0) | (commit.complete ? kComplete : 0);
  if (commit.slot < kSlotMask) out |= (commit.slot + 1) << kSlotShift;
  if (commit.paths >> kMostNamedPaths == 0) out |= static_cast<std::uint32_t>(commit.paths) << kPathsShift;
  return out;
}

CommitHeader header_of(const Commit& commit, std::uint64_t identity) {
  CommitHeader header{};
  header.magic = kCommitMagic;
  header.identity = identity;
  header.bytes = static_cast<std::uint32_t>(encoded_bytes(commit));
  header.generation = commit.generation;
  header.step = commit.step;
  header.previous = commit.previous;
  header.flags = flags_of(commit);
  header.rank = commit.rank;
  header.world = commit.world;
  header.ancestors = static_cast<std::uint32_t>(commit.ancestors.size());
  header.gradients = static_cast<std::uint32_t>(commit.gradients.size());
  header.payload = static_cast<std::uint32_t>(commit.payload.size());
  std::memcpy(header.update.data(), commit.update.data(), kUpdateBytes);
  header.more = static_cast<std::uint32_t>(more_of(commit));
  return header;
}

Commit commit_of(const CommitHeader& h) {
  Commit commit;
  commit.generation = h.generation;
  commit.step = h.step;
  commit.previous = h.previous;
  commit.skipped = (h.flags & kSkipped) != 0;
  commit.nothing = (h.flags & kNothing) != 0;
  commit.complete = (h.flags & kComplete) != 0;
  commit.slot = (h.flags >> kSlotShift & kSlotMask) - 1;  // kNoSlot of 0
  commit.paths = h.flags >> kPathsShift;
  commit.rank = h.rank;
  commit.world = h.world;
  commit.update.assign(h.update.begin(), h.update.end());
  return commit;
}

}  // namespace

bool Commit::used(std::uint32_t gradient) const noexcept {
  return gradient / 64 < gradients.size() && (gradients[gradient / 64] >> (gradient % 64) & 1) != 0;
}

void Commit::use(std::uint32_t gradient) {
  if (gradients.size() <= gradient / 64) gradients.resize(gradient / 64 + 1);
  gradients[gradient / 64] |= std::uint64_t{1} << (gradient % 64);
}

bool Commit::in_line(std::uint32_t of, std::uint64_t version) const noexcept {
  if (of == generation) return version <= step;
  return std::any_of(ancestors.begin(), ancestors.end(),
                     [&](const Ancestor& a) { return a.first <= of && of <= a.last && version <= a.step; });
}

void prune(std::vector<Ancestor>& ancestors, const NeededLine& needed) {
  std::erase_if(ancestors, [&](const Ancestor& a) {
    const auto has = [&](std::uint32_t generation) { return a.first <= generation && generation <= a.last; };
    return a.step < needed.oldest && std::ranges::none_of(needed.generations, has);
  });
}

Commit make_commit(const JournalSpec& spec, const CommitRequest& request) {
  Commit out;
  out.step = request.step;
  out.skipped = request.skipped;
  out.rank = spec.rank;
  out.world = spec.world;
  out.line = spec.line;
  if (!request.update.empty()) out.update.assign(request.update.begin(), request.update.end());
  out.payload.assign(request.payload.begin(), request.payload.end());
  return out;
}

std::vector<Ancestor> continue_line(const Commit& last, const NeededLine& needed) {
  std::vector<Ancestor> out = last.ancestors;
  // Restarts that got no further than the one before are one entry, however many there are.
  if (!out.empty() && out.back().step == last.step && out.back().last + 1 == last.generation) {
    out.back().last = last.generation;
  } else {
    out.push_back({last.generation, last.generation, last.step});
  }
  prune(out, needed);
  if (out.size() > kMostAncestors) {
    throw Error(ErrorCode::internal, text("a line of ", out.size(), " generations; a commit holds ", kMostAncestors));
  }
  return out;
}

bool fits(const Commit& commit, const JournalSpec& spec) noexcept {
  return commit.ancestors.size() <= kMostAncestors && commit.gradients.size() <= ceil_div(spec.gradients.size(), 64) &&
         commit.payload.size() <= spec.payload && commit.update.size() <= kUpdateBytes + spec.update &&
         (commit.line == 0 || spec.world > 1);
}

Bytes most_commit_bytes(const JournalSpec& spec) noexcept {
  return size_of(kMostAncestors, ceil_div(spec.gradients.size(), 64), spec.payload, spec.update, spec.world > 1);
}

Bytes encoded_bytes(const Commit& commit) noexcept {
  return size_of(commit.ancestors.size(), commit.gradients.size(), commit.payload.size(), more_of(commit),
                 commit.line != 0);
}

void encode(const Commit& commit, std::uint64_t identity, std::span<std::byte> out) {
  CommitHeader header = header_of(commit, identity);
  std::fill(out.begin(), out.end(), std::byte{0});
  std::memcpy(out.data(), &header, sizeof header);
  std::size_t at = put(out, sizeof header, commit.ancestors);
  at = put(out, at, commit.gradients);
  at = put(out, at, commit.payload);
  if (more_of(commit) > 0) std::memcpy(out.data() + at, commit.update.data() + kUpdateBytes, more_of(commit));
  if (commit.line != 0) std::memcpy(out.data() + at + more_of(commit), &commit.line, sizeof commit.line);
  header.checksum = checksum_of_commit(out.first(header.bytes));
  std::memcpy(out.data(), &header, sizeof header);
}

SlotState decode(std::span<const std::byte> in, std::uint64_t identity, Commit& commit) {
  CommitHeader header{};
  if (in.size() < sizeof header) return SlotState::damaged;
  std::memcpy(&header, in.data(), sizeof header);
  if (header.magic != kCommitMagic) return blank(in) ? SlotState::empty : SlotState::damaged;
  const bool has_line = (header.flags & kHasLine) != 0;
  if (header.bytes > in.size() ||
      header.bytes != size_of(header.ancestors, header.gradients, header.payload, header.more, has_line)) {
    return SlotState::damaged;
  }
  if (header.checksum != checksum_of_commit(in.first(header.bytes))) return SlotState::damaged;
  if (header.identity != identity) return SlotState::foreign;
  commit = commit_of(header);
  std::size_t at = get(in, sizeof header, header.ancestors, commit.ancestors);
  at = get(in, at, header.gradients, commit.gradients);
  at = get(in, at, header.payload, commit.payload);
  const auto more = in.subspan(at, header.more);
  commit.update.insert(commit.update.end(), more.begin(), more.end());
  if (has_line) std::memcpy(&commit.line, in.data() + at + header.more, sizeof commit.line);
  return SlotState::whole;
}

}  // namespace spillway::journal
