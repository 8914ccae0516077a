#include "spillway/state/shards.h"

#include "tests/state/files.h"

namespace spillway::state {
namespace {

using Shards = std::vector<std::vector<std::size_t>>;

TEST(Shards, AreCutAsSavePretrainedCutsThem) {
  // The example of the reference library: a limit of 10 and tensors of 6, 6, 2, 6, 2, 2.
  EXPECT_EQ(cut_shards({6, 6, 2, 6, 2, 2}, 10), (Shards{{0}, {1, 2}, {3, 4, 5}}));
  EXPECT_EQ(cut_shards({5, 5}, 10), (Shards{{0, 1}})) << "exactly full is not too full";
  EXPECT_EQ(cut_shards({5, 6}, 10), (Shards{{0}, {1}}));
  EXPECT_EQ(cut_shards({3, 11, 4}, 10), (Shards{{1}, {0, 2}})) << "a large tensor does not close the open shard";
  EXPECT_EQ(cut_shards({1, 2}, 0), (Shards{{0}, {1}}));
  EXPECT_EQ(cut_shards({1, 2}, ~Bytes{0}), (Shards{{0, 1}}));
  EXPECT_EQ(cut_shards({~Bytes{0} - 1, 5}, ~Bytes{0}), (Shards{{0}, {1}})) << "sums do not wrap";
}

TEST(Shards, AreNamedAsSavePretrainedNamesThem) {
  EXPECT_EQ(shard_name("model", 0, 1), "model.safetensors");
  EXPECT_EQ(shard_name("model", 1, 3), "model-00002-of-00003.safetensors");
  EXPECT_EQ(shard_name("exp_avg", 99'999, 123'456), "exp_avg-100000-of-123456.safetensors");
}

TEST(Shards, FilesOfACheckpointAreToldFromOthers) {
  for (const auto* name : {"model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
                           "model-00001-of-00002.safetensors.partial", "model.safetensors.index.json.partial"}) {
    EXPECT_TRUE(is_checkpoint_file(name, "model")) << name;
  }
  for (const auto* name : {"model.json", "my-model.safetensors", "model-old.safetensors", "model-1-of-2.safetensors",
                           "model-00001-of-00002.bin", "model-00001.safetensors", "model-of-00002.safetensors",
                           "model.safetensors.old", "model"}) {
    EXPECT_FALSE(is_checkpoint_file(name, "model")) << name;
  }
}

TEST(Index, IsWrittenAsSavePretrainedWritesIt) {
  const WeightMap files{{"b", "model-00002-of-00002.safetensors"}, {"a.\u00fc", "model-00001-of-00002.safetensors"}};
  EXPECT_EQ(serialize_index(files, 12, 24),
            "{\n  \"metadata\": {\n    \"total_parameters\": 12,\n    \"total_size\": 24\n  },\n"
            "  \"weight_map\": {\n    \"a.\\u00fc\": \"model-00001-of-00002.safetensors\",\n"
            "    \"b\": \"model-00002-of-00002.safetensors\"\n  }\n}\n");
}

TEST(Index, WrittenIsReadAgain) {
  TempDir dir;
  const WeightMap files{{"b", "two"}, {"a.\u00fc", "one"}};
  put(dir / "index.json", serialize_index(files, 1, 2));
  EXPECT_EQ(read_index(dir / "index.json"), files);
}

TEST(Index, ThatIsNotAMapOfPlainFileNamesIsRefused) {
  TempDir dir;
  const auto refused = [&](const std::string& json, std::vector<std::string> parts) {
    SCOPED_TRACE(json);
    put(dir / "index.json", json);
    parts.push_back((dir / "index.json").string());
    expect_error(ErrorCode::bad_input, parts, [&] { (void)read_index(dir / "index.json"); });
  };
  const auto names = [](const std::string& file) { return R"({"weight_map":{"w":)" + file + "}}"; };
  refused("", {"not JSON"});
  refused("{", {"not JSON"});
  refused("[]", {"weight_map"});
  refused("{}", {"weight_map"});
  refused(R"({"weight_map":[]})", {"weight_map"});
  refused(R"({"weight_map":{}})", {"empty"});
  refused(names("1"), {"tensor w", "not a string"});
  for (const auto* file : {R"("")", R"("..")", R"("../x")", R"("/etc/passwd")", R"("a/b")", R"("x\u0000y")"}) {
    refused(names(file), {"tensor w", "plain name"});
  }
  refused(R"({"weight_map":{"w":"a","w":"b"}})", {"key w", "twice"});
  refused(R"({"weight_map":{"w":"a"},"weight_map":{"w":"b"}})", {"key weight_map", "twice"});
  expect_error(ErrorCode::bad_input, {"missing.json"}, [&] { (void)read_index(dir / "missing.json"); });
}

}  // namespace
}  // namespace spillway::state
