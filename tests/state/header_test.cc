#include "spillway/state/header.h"

#include "tests/state/files.h"

namespace spillway::state {
namespace {

std::vector<HeaderTensor> parse(const std::string& json, Bytes data_bytes) {
  return parse_header(json, data_bytes, "file.safetensors");
}

/// Refused with a message that names the file and holds `parts`.
void refused(const std::string& json, Bytes data_bytes, std::vector<std::string> parts) {
  SCOPED_TRACE(json);
  parts.emplace_back("file.safetensors");
  expect_error(ErrorCode::bad_input, parts, [&] { (void)parse(json, data_bytes); });
}

/// A header of one tensor "w" with this text after its name.
std::string one(const std::string& description) {
  return R"({"w":)" + description + "}";
}

TEST(Header, IsReadInTheOrderOfTheData) {
  const auto tensors =
      parse(R"( {"__metadata__":{"format":"pt","a":"b"},"late":{"data_offsets":[6,8],"dtype":"BF16","shape":[1]},)"
            R"("early":{"dtype":"U16","shape":[3,1],"data_offsets":[0,6]},)"
            R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
            R"("none":{"dtype":"F32","shape":[0,7],"data_offsets":[6,6]}}   )",
            12);
  ASSERT_EQ(tensors.size(), 4U);
  EXPECT_EQ(tensors[0].name, "early");
  EXPECT_EQ(tensors[0].shape, (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(tensors[0].elements, 3U);
  EXPECT_EQ(tensors[0].element_bytes, 2U);
  EXPECT_EQ(tensors[1].name, "none");
  EXPECT_EQ(tensors[1].elements, 0U);
  EXPECT_EQ(tensors[2].name, "late");
  EXPECT_EQ(tensors[2].begin, 6U);
  EXPECT_EQ(tensors[3].name, "scalar");
  EXPECT_EQ(tensors[3].elements, 1U);
  EXPECT_EQ(tensors[3].end, 12U);
}

TEST(Header, OfNoTensorsIsOne) {
  EXPECT_TRUE(parse("{}", 0).empty());
}

TEST(Header, ThatIsNotAnObjectOfObjectsIsRefused) {
  refused("", 0, {"not JSON"});
  refused("{", 0, {"not JSON"});
  refused("{} x", 0, {"not JSON"});
  refused(std::string("{}\0", 3), 0, {"zero byte"});
  refused("{\"\xff\":1}", 0, {"not JSON"});
  refused("[]", 0, {"an array", "not an object"});
  refused("7", 0, {"a number", "not an object"});
  refused("null", 0, {"null", "not an object"});
  refused(one("3"), 0, {"tensor w", "a number"});
  refused(one("[]"), 0, {"tensor w", "an array"});
  refused(one("true"), 0, {"tensor w", "true or false"});
  refused(R"({"__metadata__":{"a":1}})", 0, {"__metadata__", "a is a number"});
  refused(R"({"__metadata__":{"a":{}}})", 0, {"__metadata__", "an object"});
  refused(R"({"__metadata__":"pt"})", 0, {"__metadata__", "a string"});
  refused(std::string(100'000, '['), 0, {"an array"});
}

TEST(Header, AMessageIsShortHoweverLongAName) {
  const auto error = error_of([] { (void)parse(R"({")" + std::string(1'000'000, 'n') + R"(":1})", 0); });
  EXPECT_LT(std::string(error.what()).size(), 600U);
}

TEST(Header, DuplicateKeysAreRefused) {
  const std::string w = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  refused(R"({"w":)" + w + R"(,"w":)" + w + "}", 1, {"tensor w", "twice"});
  refused(R"({"__metadata__":{},"__metadata__":{}})", 0, {"__metadata__", "twice"});
  refused(one(R"({"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]})"), 1, {"tensor w", "dtype", "twice"});
}

TEST(Header, ADescriptionThatIsIncompleteOrOfTheWrongTypeIsRefused) {
  refused(one("{}"), 0, {"tensor w", "no dtype"});
  refused(one(R"({"dtype":"U8","data_offsets":[0,1]})"), 1, {"tensor w", "no shape"});
  refused(one(R"({"dtype":"U8","shape":[1]})"), 1, {"tensor w", "no data_offsets"});
  refused(one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"colour":"red"})"), 1, {"tensor w", "colour"});
  refused(one(R"({"dtype":8,"shape":[1],"data_offsets":[0,1]})"), 1, {"tensor w", "dtype is a number"});
  refused(one(R"({"dtype":["U8"],"shape":[1],"data_offsets":[0,1]})"), 1, {"tensor w", "dtype is an array"});
  refused(one(R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})"), 1, {"tensor w", "shape is a number"});
  refused(one(R"({"dtype":"U8","shape":["1"],"data_offsets":[0,1]})"), 1, {"tensor w", "shape holds a string"});
  refused(one(R"({"dtype":"U8","shape":[[1]],"data_offsets":[0,1]})"), 1, {"tensor w", "shape holds an array"});
  refused(one(R"({"dtype":"U8","shape":[{}],"data_offsets":[0,1]})"), 1, {"tensor w", "shape holds an object"});
  refused(one(R"({"dtype":"U8","shape":[1],"data_offsets":null})"), 1, {"tensor w", "data_offsets is null"});
  refused(one(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})"), 1, {"tensor w", "fewer than two"});
  refused(one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,2]})"), 1, {"tensor w", "more than two"});
  refused(one(R"({"dtype":"Q8","shape":[1],"data_offsets":[0,1]})"), 1, {"tensor w", "unknown dtype Q8"});
}

TEST(Header, NumbersThatCannotBeAreRefused) {
  refused(one(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})"), 1, {"tensor w", "shape", "-1"});
  refused(one(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})"), 1, {"tensor w", "data_offsets", "-1"});
  refused(one(R"({"dtype":"U8","shape":[1.5],"data_offsets":[0,1]})"), 1, {"tensor w", "shape", "1.5"});
  refused(one(R"({"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]})"), 1, {"tensor w", "shape"});
  refused(one(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]})"), 1,
          {"tensor w", "more elements"});
  refused(one(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), 0,
          {"tensor w", "more elements"});
  refused(one(R"({"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]})"), 0,
          {"tensor w", "more elements"});
}

TEST(Header, OffsetsThatLieAreRefused) {
  refused(one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})"), 1, {"tensor w", "before it begins"});
  refused(one(R"({"dtype":"BF16","shape":[2],"data_offsets":[0,3]})"), 3, {"tensor w", "3 bytes", "need 4"});
  refused(one(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})"), 1, {"tensor w", "truncated"});
  refused(one(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})"), 5, {"the last 3 bytes"});
  refused(one(R"({"dtype":"U8","shape":[2],"data_offsets":[1,3]})"), 3, {"tensor w", "0 to 1", "no tensor"});
  refused(one(R"({"dtype":"U8","shape":[0],"data_offsets":[9,9]})"), 3, {"tensor w", "truncated"});
  const auto pair = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + b + "}}";
  };
  refused(pair("[0,2]", "[1,3]"), 3, {"tensors a and b overlap"});
  refused(pair("[0,2]", "[0,2]"), 2, {"overlap"});
  refused(pair("[0,2]", "[3,5]"), 5, {"2 to 3", "tensor b", "no tensor"});
  EXPECT_EQ(parse(pair("[2,4]", "[0,2]"), 4).front().name, "b");
}

TEST(Header, IsWrittenAsTheReferenceLibraryDoes) {
  // Taken from safetensors 0.8.0, save_file of {"a": zeros(3, bfloat16), "z\"ü": zeros(2, 2)}.
  const std::vector<HeaderTensor> tensors{
      {.name = "z\"\u00fc", .dtype = "F32", .shape = {2, 2}, .begin = 0, .end = 16},
      {.name = "a", .dtype = "BF16", .shape = {3}, .begin = 16, .end = 22},
  };
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"z\"ü":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("a":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}})";
  const auto padded = json + std::string((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(serialize_header(tensors), length_field(padded.size()) + padded);
}

TEST(Header, WrittenIsReadAgain) {
  const std::vector<HeaderTensor> tensors{
      {.name = "scalar \\ \n", .dtype = "F32", .shape = {}, .begin = 0, .end = 4},
      {.name = "w", .dtype = "BF16", .shape = {3, 5}, .begin = 4, .end = 34},
  };
  const auto bytes = serialize_header(tensors);
  EXPECT_EQ(bytes.size() % 8, 0U);
  const auto again = parse(bytes.substr(8), 34);
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(again[0].name, tensors[0].name);
  EXPECT_EQ(again[1].shape, tensors[1].shape);
  EXPECT_EQ(again[1].begin, 4U);
}

}  // namespace
}  // namespace spillway::state
