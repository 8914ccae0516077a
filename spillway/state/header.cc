#include "spillway/state/header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "spillway/base/error.h"
#include "spillway/state/dtype.h"

namespace spillway::state {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";

[[noreturn]] void refuse_file(const std::string& file, const std::string& what) {
  constexpr std::size_t kMost = 500;  // a name in a damaged header may have megabytes
  throw Error(ErrorCode::bad_input, text(file, ": ", what.substr(0, kMost), what.size() > kMost ? " ..." : ""), 0,
              file);
}

/// Takes the parser's events; the place in the document decides what may come next.
class HeaderEvents final : public Json::json_sax_t {
 public:
  explicit HeaderEvents(const std::string& file) : file_(file) {}

  [[nodiscard]] std::vector<HeaderTensor> take() { return std::move(tensors_); }

  bool start_object(std::size_t /*size*/) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top) {
      place_ = name_ == kMetadata ? Place::metadata : Place::tensor;
      open_ = {};
      open_.name = name_;
      offsets_.clear();
      keys_.clear();
    } else {
      wrong("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) close_tensor();
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool key(std::string& value) override {
    const bool fresh = place_ == Place::top ? names_.insert(value).second : keys_.insert(value).second;
    if (place_ == Place::top) {
      if (!fresh) refuse(text("tensor ", value, " is listed twice"));
      name_ = value;
      return true;
    }
    key_ = value;
    if (!fresh) refuse(where(), " has the key ", value, " twice");
    if (place_ == Place::tensor && value != "dtype" && value != "shape" && value != "data_offsets") {
      refuse(where(), " has the unknown key ", value);
    }
    return true;
  }

  bool start_array(std::size_t /*size*/) override {
    if (place_ != Place::tensor || key_ == "dtype") wrong("an array");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::metadata) return true;
    if (place_ != Place::tensor || key_ != "dtype") wrong("a string");
    open_.dtype = value;
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) overflow();
      open_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::offsets) {
      if (offsets_.size() == 2) refuse(where(), ": data_offsets has more than two numbers");
      offsets_.push_back(value);
    } else {
      wrong("a number");
    }
    return true;
  }

  bool number_integer(std::int64_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) wrong("a number");
    refuse(where(), ": ", key_, " has the negative number ", value);
  }

  bool number_float(double /*value*/, const std::string& spelling) override {
    if (place_ != Place::shape && place_ != Place::offsets) wrong("a number");
    refuse(where(), ": ", key_, " has ", spelling, ", which is not a whole number of 64 bits");
  }

  bool null() override { wrong("null"); }
  bool boolean(bool /*value*/) override { wrong("true or false"); }
  bool binary(Json::binary_t& /*value*/) override { wrong("binary"); }

  bool parse_error(std::size_t position, const std::string& token, const Json::exception& /*error*/) override {
    refuse("the header is not JSON (byte ", position, " of it, near '", token.substr(0, 40), "')");
  }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    refuse_file(file_, text(parts...));
  }

  [[noreturn]] void wrong(const char* what) const {
    if (place_ == Place::outside) refuse("the header is ", what, ", not an object of tensors");
    if (place_ == Place::top) refuse("tensor ", name_, " is ", what, ", not an object");
    if (place_ == Place::metadata) refuse(kMetadata, ": ", key_, " is ", what, ", not a string");
    refuse(where(), ": ", key_, place_ == Place::tensor ? " is " : " holds ", what, ", not ",
           key_ == "dtype" ? "a string" : "an array of whole numbers");
  }

  [[noreturn]] void overflow() const { refuse(where(), ": its shape has more elements than a file can hold"); }

  [[nodiscard]] std::string where() const {
    return place_ == Place::metadata ? std::string(kMetadata) : text("tensor ", open_.name);
  }

  void close_tensor() {
    for (const auto* needed : {"dtype", "shape", "data_offsets"}) {
      if (!keys_.contains(needed)) refuse(where(), " has no ", needed);
    }
    const auto* type = find_dtype(open_.dtype);
    if (type == nullptr) refuse(where(), " has the unknown dtype ", open_.dtype);
    if (offsets_.size() != 2) refuse(where(), ": data_offsets has fewer than two numbers");
    open_.element_bytes = type->bytes;
    open_.begin = offsets_[0];
    open_.end = offsets_[1];
    check_size();
    tensors_.push_back(std::move(open_));
  }

  void check_size() {
    open_.elements = 1;
    for (const auto size : open_.shape) {
      if (__builtin_mul_overflow(open_.elements, static_cast<std::uint64_t>(size), &open_.elements)) overflow();
    }
    Bytes bytes = 0;
    if (__builtin_mul_overflow(open_.elements, open_.element_bytes, &bytes)) overflow();
    if (open_.begin > open_.end) {
      refuse(where(), ": data_offsets ends at ", open_.end, ", before it begins at ", open_.begin);
    }
    if (open_.end - open_.begin != bytes) {
      refuse(where(), ": data_offsets spans ", open_.end - open_.begin, " bytes, but its shape and dtype ", open_.dtype,
             " need ", bytes);
    }
  }

  const std::string& file_;
  Place place_ = Place::outside;
  std::string name_;             // key at the top
  std::string key_;              // key below it
  std::set<std::string> names_;  // all keys at the top
  std::set<std::string> keys_;   // all keys of the open object
  std::vector<std::uint64_t> offsets_;
  HeaderTensor open_;
  std::vector<HeaderTensor> tensors_;
};

void check_offsets(const std::vector<HeaderTensor>& tensors, Bytes data_bytes, const std::string& file) {
  const auto refuse = [&](const std::string& what) { refuse_file(file, what); };
  Bytes at = 0;
  const HeaderTensor* before = nullptr;
  for (const auto& tensor : tensors) {
    if (tensor.end > data_bytes) {
      refuse(text("tensor ", tensor.name, " ends at byte ", tensor.end, " of the data, but the file holds ", data_bytes,
                  ": it is truncated (fetch it again) or its header is wrong"));
    }
    if (tensor.begin < at) refuse(text("tensors ", before->name, " and ", tensor.name, " overlap"));
    if (tensor.begin > at) {
      refuse(text("bytes ", at, " to ", tensor.begin, " of the data, before tensor ", tensor.name,
                  ", belong to no tensor"));
    }
    at = tensor.end;
    before = &tensor;
  }
  if (at != data_bytes) refuse(text("the last ", data_bytes - at, " bytes of the data belong to no tensor"));
}

}  // namespace

std::vector<HeaderTensor> parse_header(std::string_view json, Bytes data_bytes, const std::string& file) {
  // The parser takes a zero byte for the end of its input.
  if (json.find('\0') != std::string_view::npos) {
    refuse_file(file, "the header is not JSON (it has a zero byte)");
  }
  HeaderEvents events(file);
  Json::sax_parse(json.begin(), json.end(), &events);
  auto tensors = events.take();
  std::sort(tensors.begin(), tensors.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_offsets(tensors, data_bytes, file);
  return tensors;
}

namespace {

/// Not by the library, whose lists allocate when they go: where memory runs out that ends the process.
template <class Numbers>
std::string list(const Numbers& numbers) {
  std::string out = "[";
  for (const auto number : numbers) out += text(out.size() > 1 ? "," : "", number);
  return out + ']';
}

}  // namespace

std::string serialize_header(std::span<const HeaderTensor> tensors) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  for (const auto& tensor : tensors) {
    json += ',' + Json(tensor.name).dump() + R"(:{"dtype":")" + tensor.dtype + R"(","shape":)" + list(tensor.shape) +
            R"(,"data_offsets":)" + list(std::array{tensor.begin, tensor.end}) + '}';
  }
  json += '}';
  json.resize(round_up(json.size(), 8), ' ');
  std::string out;
  for (unsigned shift = 0; shift < 64; shift += 8) out += static_cast<char>((json.size() >> shift) & 0xFFU);
  return out + json;
}

}  // namespace spillway::state
