#include "spillway/optim/step.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "spillway/base/error.h"

namespace spillway::optim {
namespace {

/// The first layout of a commit's update.
struct FirstLayout {
  ElementValues values;
  std::int64_t updates;
  float gradient_scale;
};
static_assert(offsetof(FirstLayout, gradient_scale) + sizeof(float) == kFirstLayoutBytes);

constexpr std::uint32_t kVersion = 1;

/// What is behind it: values of the optimizer's own, as `count` says.
struct Extension {
  std::array<char, 16> name;  ///< of the optimizer, zeros behind it
  std::uint32_t version;
  std::uint32_t count;
};
static_assert(sizeof(Extension) == 24);

/// The optimizer whose values the first layout holds.
const Descriptor& first_of(const Descriptor& optimizer) noexcept {
  return optimizer.of(false);
}

/// Where the values of first_of() begin.
std::size_t first_at(const Descriptor& optimizer) noexcept {
  return optimizer.others == nullptr ? 0 : optimizer.hyperparameters.size();
}

bool extends(const Descriptor& optimizer) noexcept {
  return std::ranges::any_of(optimizer.hyperparameters, [](const auto& each) { return each.slot < 0; });
}

std::array<char, 16> name_of(const Descriptor& optimizer) noexcept {
  std::array<char, 16> out{};
  const std::string_view name = optimizer.name;
  name.copy(out.data(), out.size());
  return out;
}

void check(const Descriptor& optimizer, const Hyperparameter& it, double value) {
  if (value >= it.least && value < it.below) return;
  throw Error(ErrorCode::bad_input,
              text(it.name, " of ", optimizer.name, " is ", value, "; it must be at least ", it.least,
                   it.below < std::numeric_limits<double>::infinity() ? text(" and below ", it.below) : std::string()));
}

/// Sets what is called `name`; whether there is such a value.
bool set(const Descriptor& optimizer, std::span<double> values, std::string_view name, double value) {
  const auto& all = optimizer.hyperparameters;
  const auto at = std::ranges::find(all, name, [](const auto& each) { return std::string_view(each.name); });
  if (at == all.end()) return false;
  check(optimizer, *at, value);
  values[static_cast<std::size_t>(at - all.begin())] = value;
  return true;
}

std::string known(const Descriptor& optimizer) {
  std::string out;
  for (const auto& each : optimizer.hyperparameters) out += text(out.empty() ? "" : ", ", each.name);
  return out;
}

ElementValues element_values(const Descriptor& optimizer, std::span<const double> values) noexcept {
  auto out = kElementDefaults;
  for (std::size_t i = 0; i < optimizer.hyperparameters.size(); ++i) {
    if (const int slot = optimizer.hyperparameters[i].slot; slot >= 0) out[static_cast<std::size_t>(slot)] = values[i];
  }
  return out;
}

}  // namespace

Step make_step(const Descriptor& optimizer, const NamedValues& named) {
  struct Group {
    const Descriptor* of;
    std::span<double> values;
  };
  Step out;
  std::vector<Group> groups{{&optimizer, std::span(out.values)}};
  if (optimizer.others != nullptr) groups.push_back({optimizer.others, groups[0].values.subspan(first_at(optimizer))});
  for (const auto& [of, values] : groups) {
    for (std::size_t i = 0; i < of->hyperparameters.size(); ++i) values[i] = of->hyperparameters[i].value;
  }
  // Names of one group come behind those of all, which they replace.
  for (const bool single : {false, true}) {
    for (const auto& [name, value] : named) {
      const auto dot = name.find('.');
      if (single != (dot != std::string::npos)) continue;
      const auto own = single ? std::string_view(name).substr(dot + 1) : std::string_view(name);
      bool found = false;
      for (const auto& [of, values] : groups) {
        if (!single || std::string_view(name).substr(0, dot) == of->name) found |= set(*of, values, own, value);
      }
      if (found) continue;
      throw Error(ErrorCode::bad_input,
                  text(optimizer.name, " has no hyperparameter ", name, "; it has ", known(optimizer)));
    }
  }
  return out;
}

Step group_step(const Descriptor& optimizer, const Step& step, bool whole) noexcept {
  auto out = step;
  const auto from = whole ? 0 : first_at(optimizer);
  out.values = {};
  std::copy(step.values.begin() + static_cast<std::ptrdiff_t>(from), step.values.end(), out.values.begin());
  return out;
}

kernels::UpdateStep kernel_step(const Descriptor& optimizer, const Step& step) noexcept {
  const auto [rate, beta1, beta2, epsilon, decay] = element_values(optimizer, step.values);
  return {.optimizer = optimizer.kernel,
          .learning_rate = rate,
          .beta1 = beta1,
          .beta2 = beta2,
          .epsilon = epsilon,
          .weight_decay = decay,
          .gradient_scale = step.gradient_scale,
          .step = step.step,
          .seed = step.seed};
}

Bytes extension_bytes(const Descriptor& optimizer) noexcept {
  return extends(optimizer) ? sizeof(Extension) + optimizer.hyperparameters.size() * sizeof(double) : 0;
}

std::vector<std::byte> encode(const Descriptor& optimizer, const Step& step) {
  std::vector<std::byte> out(kFirstLayoutBytes + extension_bytes(optimizer));
  const FirstLayout first{element_values(first_of(optimizer), std::span(step.values).subspan(first_at(optimizer))),
                          step.step, step.gradient_scale};
  std::memcpy(out.data(), &first, kFirstLayoutBytes);
  if (!extends(optimizer)) return out;
  const auto count = optimizer.hyperparameters.size();
  const Extension extension{name_of(optimizer), kVersion, static_cast<std::uint32_t>(count)};
  std::memcpy(out.data() + kFirstLayoutBytes, &extension, sizeof extension);
  std::memcpy(out.data() + kFirstLayoutBytes + sizeof extension, step.values.data(), count * sizeof(double));
  return out;
}

Step decode(const Descriptor& optimizer, std::span<const std::byte> blob) {
  if (blob.size() < kFirstLayoutBytes + extension_bytes(optimizer)) {
    throw Error(ErrorCode::corrupt, text("the update of a commit has ", blob.size(), " bytes; of ", optimizer.name,
                                         " it has ", kFirstLayoutBytes + extension_bytes(optimizer)));
  }
  FirstLayout first{};
  std::memcpy(&first, blob.data(), kFirstLayoutBytes);
  Step out{.gradient_scale = first.gradient_scale, .step = first.updates};
  const auto at = first_at(optimizer);
  const auto& of = first_of(optimizer).hyperparameters;
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (of[i].slot >= 0) out.values[at + i] = first.values[static_cast<std::size_t>(of[i].slot)];
  }
  if (!extends(optimizer)) return out;
  Extension extension{};
  std::memcpy(&extension, blob.data() + kFirstLayoutBytes, sizeof extension);
  const auto count = optimizer.hyperparameters.size();
  if (extension.name != name_of(optimizer) || extension.version != kVersion || extension.count != count) {
    throw Error(ErrorCode::corrupt,
                text("the update of a commit is of another optimizer, or version, than ", optimizer.name));
  }
  std::memcpy(out.values.data(), blob.data() + kFirstLayoutBytes + sizeof extension, count * sizeof(double));
  return out;
}

}  // namespace spillway::optim
