// Home of each object of a step: one value per object.
#pragma once

#include <cstdint>

#include "spillway/plan/kinds.h"

namespace spillway::plan {

struct TierId {
  TierKind kind = TierKind::storage;
  std::uint16_t node = 0;  ///< host: index into Budget::nodes; else 0

  bool operator==(const TierId&) const = default;
  [[nodiscard]] constexpr bool in_memory() const noexcept { return traits(kind).in_memory; }
  [[nodiscard]] constexpr bool on_host() const noexcept { return traits(kind).on_host; }
  [[nodiscard]] constexpr bool on_device() const noexcept { return traits(kind).on_device; }
  /// It is in memory: on the host unless it is on a device.
  constexpr void keep() noexcept { kind = in_memory() ? kind : TierKind::host; }
};

/// Kinds of tiers.
class TierSet {
 public:
  constexpr void add(TierKind kind) noexcept { bits_ = static_cast<std::uint8_t>(bits_ | bit(kind)); }
  [[nodiscard]] constexpr bool has(TierKind kind) const noexcept { return (bits_ & bit(kind)) != 0; }

  bool operator==(const TierSet&) const = default;

 private:
  static constexpr unsigned bit(TierKind kind) noexcept { return 1U << static_cast<unsigned>(kind); }

  std::uint8_t bits_ = 0;
};

/// Who of several processes has an object while it is in memory. On paths each process has what it owns.
enum class Owner : std::uint8_t {
  every,  ///< each process
  one,    ///< the process that updates it; passes of the others find it in windows
};

/// The tier of an object's master, who has that, and where copies of it stay that each step makes anew.
struct Residence : TierId {
  Owner owner = Owner::every;
  TierSet copies = {};

  bool operator==(const Residence&) const = default;
  /// A copy stays on the device.
  [[nodiscard]] constexpr bool has_device_copy() const noexcept { return copies.has(TierKind::device); }
  /// A process keeps in memory what it owns, and no more.
  [[nodiscard]] constexpr bool keeps_own() const noexcept { return owner == Owner::one && in_memory(); }
  /// The same object in another tier.
  constexpr void move_to(TierId tier) noexcept { static_cast<TierId&>(*this) = tier; }
};

}  // namespace spillway::plan
