#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../base/cpu_time.h"
#include "../base/temp_folder.h"
#include "base/log.h"
#include "safetensors_bytes.h"

namespace glint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kIndex = "model.safetensors.index.json";

// A weight_map of `pairs` (tensor, file).
std::string index_of(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string out = R"({"metadata":{"total_size":8},"weight_map":{)";
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    out += (i == 0 ? "\"" : ",\"") + pairs[i].first + "\":\"" + pairs[i].second + "\"";
  }
  return out + "}}";
}

struct Opened {
  std::shared_ptr<const Checkpoint> checkpoint;
  std::string error;  // empty when opened
  ErrorCode code = ErrorCode::kInternal;
  std::string logged;
};

Opened open(const fs::path& path, bool weights_required = true, LogLevel level = LogLevel::kWarn) {
  configure_log(level, LogFormat::kText);
  testing::internal::CaptureStderr();
  auto result = Checkpoint::open(path, weights_required);
  Opened opened;
  opened.logged = testing::internal::GetCapturedStderr();
  configure_log(LogLevel::kInfo, LogFormat::kText);
  if (result) {
    opened.checkpoint = std::move(*result);
  } else {
    opened.error = result.error().message;
    opened.code = result.error().code;
  }
  return opened;
}

// A folder with a config.json that counts two layers.
class CheckpointFolder : public ::testing::Test {
 protected:
  CheckpointFolder() {
    folder_.write("config.json", R"({"model_type":"x","num_hidden_layers":2})");
  }
  const fs::path& path() const { return folder_.path(); }
  void write(const fs::path& name, std::string_view bytes) { folder_.write(name, bytes); }
  void write_two_shards() {
    write("model-00001-of-00002.safetensors", file_with({"a", "b"}));
    write("model-00002-of-00002.safetensors", file_with({"c"}));
  }
  void write_index() {
    write(kIndex, index_of({{"a", "model-00001-of-00002.safetensors"},
                            {"b", "model-00001-of-00002.safetensors"},
                            {"c", "model-00002-of-00002.safetensors"}}));
  }
  TempFolder folder_;
};

TEST_F(CheckpointFolder, a_single_file_opens) {
  write("model.safetensors", file_with({"a", "b"}));
  write("generation_config.json", R"({"temperature":1.0})");
  const Opened o = open(path());
  ASSERT_TRUE(o.checkpoint) << o.error;
  EXPECT_EQ(o.checkpoint->folder(), path());
  EXPECT_EQ(o.checkpoint->config().find("model_type")->as_string(), "x");
  EXPECT_EQ(o.checkpoint->generation_config().find("temperature")->as_double(), 1.0);
  EXPECT_TRUE(o.checkpoint->has_weights());
  EXPECT_EQ(o.checkpoint->total_bytes(), 8u);
  EXPECT_THAT(o.checkpoint->files(), ElementsAre("model.safetensors"));
  ASSERT_NE(o.checkpoint->find("b"), nullptr);
  EXPECT_EQ(o.checkpoint->find("b")->bytes[0], std::byte{4});
  EXPECT_EQ(o.checkpoint->find("c"), nullptr);
  EXPECT_EQ(o.logged, "");
}

TEST_F(CheckpointFolder, shards_open_with_and_without_an_index) {
  write_two_shards();
  for (const bool indexed : {false, true}) {
    if (indexed) write_index();
    const Opened o = open(path());
    ASSERT_TRUE(o.checkpoint) << o.error;
    EXPECT_EQ(o.checkpoint->tensors().size(), 3u);
    EXPECT_THAT(o.checkpoint->files(), ElementsAre("model-00001-of-00002.safetensors",
                                                   "model-00002-of-00002.safetensors"));
  }
}

TEST_F(CheckpointFolder, shards_may_be_symbolic_links_as_in_a_download_cache) {
  TempFolder cache;
  const fs::path blob = cache.write("blobs/sha", file_with({"a"}));
  fs::create_symlink(blob, path() / "model.safetensors");
  EXPECT_TRUE(open(path()).checkpoint);
  fs::remove(blob);
  EXPECT_THAT(open(path()).error, HasSubstr("holds no weights"));
}

TEST_F(CheckpointFolder, every_shard_that_the_index_names_and_the_folder_lacks_is_listed) {
  write("one.safetensors", file_with({"a"}));
  write(kIndex,
        index_of({{"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "three.safetensors"}}));
  const Opened o = open(path());
  EXPECT_EQ(o.code, ErrorCode::kNotFound);
  EXPECT_THAT(o.error, AllOf(HasSubstr("2 of 3"), HasSubstr("three.safetensors, two.safetensors"),
                             HasSubstr("incomplete download?")));
}

TEST_F(CheckpointFolder, a_stale_index_is_suspected_when_other_weights_are_there) {
  write("model.safetensors", file_with({"a"}));
  write_index();
  EXPECT_THAT(open(path()).error,
              AllOf(HasSubstr("holds model.safetensors"), HasSubstr("delete the index")));
}

TEST_F(CheckpointFolder, a_gap_in_numbered_shards_is_found_without_an_index) {
  write("model-00001-of-00003.safetensors", file_with({"a"}));
  write("model-00003-of-00003.safetensors", file_with({"c"}));
  EXPECT_THAT(open(path()).error,
              AllOf(HasSubstr("1 of 3"), HasSubstr("model-00002-of-00003.safetensors"),
                    HasSubstr("incomplete download?")));
}

TEST_F(CheckpointFolder, absurd_shard_numbers_are_just_names) {
  write("model-00001-of-4294967295.safetensors", file_with({"a"}));
  write("model-99999999999-of-1.safetensors", file_with({"b"}));
  write("model--of-.safetensors", file_with({"c"}));
  EXPECT_TRUE(open(path()).checkpoint) << open(path()).error;
}

TEST_F(CheckpointFolder, a_tensor_that_the_index_promises_and_its_shard_lacks_is_named) {
  write("one.safetensors", file_with({"a"}));
  write(kIndex, index_of({{"a", "one.safetensors"}, {"b", "one.safetensors"}}));
  const Opened o = open(path());
  EXPECT_EQ(o.code, ErrorCode::kCorrupt);
  EXPECT_THAT(o.error, AllOf(HasSubstr("\"b\""), HasSubstr("one.safetensors, which lacks it")));
}

TEST_F(CheckpointFolder, a_tensor_in_another_shard_than_promised_is_named) {
  write("one.safetensors", file_with({"a"}));
  write("two.safetensors", file_with({"b"}));
  write(kIndex, index_of({{"a", "two.safetensors"}, {"b", "one.safetensors"}}));
  EXPECT_THAT(open(path()).error,
              AllOf(HasSubstr("\"a\" in two.safetensors"), HasSubstr("it is in one.safetensors")));
}

TEST_F(CheckpointFolder, all_broken_promises_are_listed) {
  write("one.safetensors", file_with({"a"}));
  write("two.safetensors", file_with({"b"}));
  write(kIndex, index_of({{"a", "one.safetensors"},
                          {"b", "one.safetensors"},
                          {"c", "two.safetensors"},
                          {"d", "one.safetensors"}}));
  EXPECT_THAT(open(path()).error,
              AllOf(HasSubstr("3 tensors"), HasSubstr("\"b\" in one.safetensors, but it is in two"),
                    HasSubstr("\"c\" in two.safetensors, which lacks it"),
                    HasSubstr("\"d\" in one.safetensors, which lacks it")));
}

TEST_F(CheckpointFolder, an_mtp_file_of_a_model_with_a_text_config_is_taken) {
  write("config.json", R"({"model_type": "x", "text_config": {"num_hidden_layers": 2}})");
  write_two_shards();
  write_index();
  write("mtp.safetensors", file_with({"model.language_model.layers.2.eh_proj.weight"}));
  const Opened o = open(path());
  ASSERT_TRUE(o.checkpoint) << o.error;
  EXPECT_NE(o.checkpoint->find("model.language_model.layers.2.eh_proj.weight"), nullptr);
}

TEST_F(CheckpointFolder, one_tensor_in_two_files_is_refused_naming_both) {
  write("model.safetensors", file_with({"a"}));
  write("model-00001-of-00001.safetensors", file_with({"a"}));
  const Opened o = open(path());
  EXPECT_EQ(o.code, ErrorCode::kCorrupt);
  EXPECT_THAT(o.error, AllOf(HasSubstr("\"a\""), HasSubstr("model.safetensors"),
                             HasSubstr("model-00001-of-00001.safetensors")));
}

TEST_F(CheckpointFolder, foreign_files_beside_an_index_are_ignored_with_a_debug_line) {
  write_two_shards();
  write_index();
  write("model.safetensors", file_with({"a", "foreign"}));
  write("broken.safetensors", "not even safetensors");
  const Opened o = open(path(), true, LogLevel::kDebug);
  ASSERT_TRUE(o.checkpoint) << o.error;
  EXPECT_EQ(o.checkpoint->find("foreign"), nullptr);
  EXPECT_EQ(o.checkpoint->find("a")->file->path().filename(), "model-00001-of-00002.safetensors");
  EXPECT_THAT(o.logged, AllOf(HasSubstr("debug"), HasSubstr("model.safetensors in"),
                              HasSubstr("broken.safetensors in")));
  EXPECT_EQ(open(path()).logged, "");
}

TEST_F(CheckpointFolder, an_mtp_file_that_the_index_forgets_is_taken_with_one_warning) {
  write_two_shards();
  write_index();
  write("mtp.safetensors", file_with({"model.layers.2.eh_proj.weight", "mtp.norm.weight", "a",
                                      "model.layers.1.x", "other"}));
  const Opened o = open(path());
  ASSERT_TRUE(o.checkpoint) << o.error;
  EXPECT_NE(o.checkpoint->find("model.layers.2.eh_proj.weight"), nullptr);
  EXPECT_NE(o.checkpoint->find("mtp.norm.weight"), nullptr);
  EXPECT_EQ(o.checkpoint->find("a")->file->path().filename(), "model-00001-of-00002.safetensors");
  EXPECT_EQ(o.checkpoint->find("model.layers.1.x"), nullptr);
  EXPECT_EQ(o.checkpoint->find("other"), nullptr);
  EXPECT_THAT(o.logged, AllOf(HasSubstr("warn"), HasSubstr("does not name mtp.safetensors"),
                              HasSubstr("2 tensors of MTP layer 2"), HasSubstr("published")));
  EXPECT_EQ(std::count(o.logged.begin(), o.logged.end(), '\n'), 1);
}

TEST_F(CheckpointFolder, an_mtp_file_without_mtp_tensors_is_ignored_in_silence) {
  write_two_shards();
  write_index();
  write("mtp.safetensors", file_with({"a", "other"}));
  const Opened o = open(path());
  ASSERT_TRUE(o.checkpoint) << o.error;
  EXPECT_EQ(o.checkpoint->tensors().size(), 3u);
  EXPECT_EQ(o.logged, "");
}

TEST_F(CheckpointFolder, a_broken_unlisted_mtp_file_is_ignored_with_a_warning) {
  write_two_shards();
  write_index();
  write("mtp.safetensors", file_with({"mtp.x"}).substr(0, 50));
  const Opened o = open(path());
  ASSERT_TRUE(o.checkpoint) << o.error;
  EXPECT_THAT(o.logged, AllOf(HasSubstr("mtp.safetensors is ignored"), HasSubstr("truncated")));
}

TEST_F(CheckpointFolder, without_an_index_an_mtp_file_is_one_of_the_files) {
  write("model.safetensors", file_with({"a"}));
  write("mtp.safetensors", file_with({"mtp.x"}));
  write("consolidated.safetensors", file_with({"a"}));
  const Opened o = open(path());
  ASSERT_TRUE(o.checkpoint) << o.error;
  EXPECT_THAT(o.checkpoint->files(), ElementsAre("model.safetensors", "mtp.safetensors"));
}

TEST_F(CheckpointFolder, files_of_unusual_names_are_taken_when_no_usual_one_is_there) {
  write("weights.safetensors", file_with({"a"}));
  const Opened o = open(path());
  ASSERT_TRUE(o.checkpoint) << o.error;
  EXPECT_THAT(o.checkpoint->files(), ElementsAre("weights.safetensors"));
}

TEST_F(CheckpointFolder, an_adapter_is_no_model) {
  write("adapter_model.safetensors", file_with({"a"}));
  EXPECT_THAT(open(path()).error,
              AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("merge")));
}

TEST_F(CheckpointFolder, an_index_that_leaves_the_folder_is_refused) {
  TempFolder outside;
  write("good.safetensors", file_with({"a"}));
  outside.write("x.safetensors", file_with({"a"}));
  for (const std::string& file :
       {std::string("../x.safetensors"), std::string("sub/../../x.safetensors"),
        (outside.path() / "x.safetensors").string(), std::string(""), std::string("."),
        std::string("sub/"), std::string("./good.safetensors"),
        std::string("good.safetensors\\u0000")}) {
    write(kIndex, index_of({{"a", file}}));
    const Opened o = open(path());
    EXPECT_EQ(o.code, ErrorCode::kCorrupt) << file;
    EXPECT_THAT(o.error, AllOf(HasSubstr("\"a\""), HasSubstr("no file below the model's folder")))
        << file;
  }
}

TEST_F(CheckpointFolder, an_index_may_name_files_in_folders_below) {
  write("sub/x.safetensors", file_with({"a"}));
  write(kIndex, index_of({{"a", "sub/x.safetensors"}}));
  EXPECT_TRUE(open(path()).checkpoint) << open(path()).error;
}

TEST_F(CheckpointFolder, malformed_indices_are_refused_by_name) {
  write("model.safetensors", file_with({"a"}));
  for (const char* index :
       {"", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{}}", "{\"weight_map\":{\"a\":1}}",
        "{\"weight_map\":", "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}"}) {
    write(kIndex, index);
    const Opened o = open(path());
    EXPECT_EQ(o.code, ErrorCode::kCorrupt) << index;
    EXPECT_THAT(o.error, HasSubstr(kIndex)) << index;
  }
  write(kIndex, index_of({{"a", "pytorch_model.bin"}}));
  EXPECT_EQ(open(path()).code, ErrorCode::kUnsupported);
}

TEST_F(CheckpointFolder, a_truncated_shard_is_refused_by_name_and_tensor) {
  write("model.safetensors", file_with({"a", "b"}).substr(0, file_with({"a", "b"}).size() - 2));
  EXPECT_THAT(open(path()).error, AllOf(HasSubstr("model.safetensors is truncated"),
                                        HasSubstr("\"b\""), HasSubstr("incomplete download?")));
}

TEST_F(CheckpointFolder, pickles_are_refused_and_never_opened) {
  for (const char* name : {"pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"}) {
    TempFolder folder;
    folder.write("config.json", "{}");
    const fs::path pickle = folder.write(name, "cos\nsystem\n(S'false'\ntR.");
    const auto before = fs::last_write_time(pickle);
    const Opened o = open(folder.path());
    EXPECT_EQ(o.code, ErrorCode::kUnsupported);
    EXPECT_THAT(o.error, AllOf(HasSubstr(name), HasSubstr("convert the model to safetensors")));
    EXPECT_EQ(fs::last_write_time(pickle), before);
    EXPECT_THAT(open(pickle).error, HasSubstr("convert the model to safetensors"));
    EXPECT_TRUE(open(folder.path(), false).checkpoint);
  }
}

TEST_F(CheckpointFolder, git_lfs_pointers_and_web_pages_are_named) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
  write("model.safetensors", pointer);
  EXPECT_THAT(open(path()).error, AllOf(HasSubstr("model.safetensors is a git-lfs pointer"),
                                        HasSubstr("git lfs pull")));
  write("config.json", pointer);
  EXPECT_THAT(open(path()).error, HasSubstr("config.json is a git-lfs pointer"));
  write("config.json", "<!DOCTYPE html>\n<html>404</html>");
  EXPECT_THAT(open(path()).error, HasSubstr("config.json is a web page"));
}

TEST_F(CheckpointFolder, weights_may_be_absent_when_they_are_not_required) {
  const Opened o = open(path(), false);
  ASSERT_TRUE(o.checkpoint) << o.error;
  EXPECT_FALSE(o.checkpoint->has_weights());
  EXPECT_THAT(o.checkpoint->why_missing("a"), HasSubstr("holds no weights"));
  EXPECT_EQ(open(path()).code, ErrorCode::kNotFound);
  EXPECT_THAT(open(path()).error, HasSubstr("holds no weights"));
}

TEST_F(CheckpointFolder, a_bare_config_file_opens_when_weights_are_not_required) {
  const Opened o = open(path() / "config.json", false);
  ASSERT_TRUE(o.checkpoint) << o.error;
  EXPECT_EQ(o.checkpoint->folder(), path());
  EXPECT_FALSE(o.checkpoint->has_weights());
  EXPECT_TRUE(o.checkpoint->generation_config().is_null());
  EXPECT_THAT(open(path() / "config.json").error, HasSubstr("give the model's folder"));
}

TEST_F(CheckpointFolder, config_json_must_be_one_object_of_bounded_size_and_depth) {
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  for (const std::string& config :
       {std::string(""), std::string("[]"), std::string("7"), std::string("{\"a\":"),
        std::string("{}{}"), "{\"a\":" + deep + "}", std::string("{\"a\":1,\"a\":2}"),
        std::string("{\"a\":NaN}"), std::string("{\"a\":\"\xff\"}")}) {
    write("config.json", config);
    const Opened o = open(path(), false);
    EXPECT_EQ(o.code, ErrorCode::kCorrupt) << config;
    EXPECT_THAT(o.error, HasSubstr("config.json")) << config;
  }
  write("config.json", "{\"a\":\"" + std::string(17 << 20, 'x') + "\"}");
  EXPECT_THAT(open(path(), false).error,
              AllOf(HasSubstr("config.json"), HasSubstr("larger than the limit")));
}

TEST_F(CheckpointFolder, generation_config_is_optional_but_must_parse) {
  write("model.safetensors", file_with({"a"}));
  EXPECT_TRUE(open(path()).checkpoint->generation_config().is_null());
  write("generation_config.json", "{\"temperature\":");
  EXPECT_THAT(open(path()).error, HasSubstr("generation_config.json"));
}

TEST_F(CheckpointFolder, folders_that_are_no_models_say_what_is_missing) {
  TempFolder empty;
  EXPECT_EQ(open(empty.path() / "absent").code, ErrorCode::kNotFound);
  EXPECT_THAT(open(empty.path() / "absent").error, HasSubstr("does not exist"));
  EXPECT_THAT(open(empty.path()).error, HasSubstr("holds no files"));
  empty.write("model.safetensors", file_with({"a"}));
  EXPECT_THAT(open(empty.path()).error, HasSubstr("no config.json"));
  EXPECT_THAT(open(empty.path() / "model.safetensors").error, HasSubstr("give the model's folder"));
  empty.write("adapter_config.json", "{}");
  EXPECT_THAT(open(empty.path()).error, HasSubstr("adapter"));
}

TEST_F(CheckpointFolder, weights_without_a_tensor_are_refused) {
  write("model.safetensors", safetensors_file("{}", 0));
  EXPECT_THAT(open(path()).error, AllOf(HasSubstr("model.safetensors"), HasSubstr("no tensor")));
}

TEST_F(CheckpointFolder, why_missing_says_where_a_tensor_was_looked_for) {
  write("model.safetensors", file_with({"a"}));
  EXPECT_EQ(open(path()).checkpoint->why_missing("z"), "model.safetensors lacks it");
  fs::remove(path() / "model.safetensors");
  write_two_shards();
  EXPECT_THAT(open(path()).checkpoint->why_missing("z"), HasSubstr("none of the 2 weight files"));
  write_index();
  EXPECT_THAT(open(path()).checkpoint->why_missing("z"),
              AllOf(HasSubstr(kIndex), HasSubstr("does not name it"), Not(HasSubstr("ignored"))));
  write("extra.safetensors", file_with({"z"}));
  EXPECT_THAT(open(path()).checkpoint->why_missing("z"),
              HasSubstr("extra.safetensors beside it was ignored"));
}

TEST(Checkpoint, folders_written_by_the_reference_library_open) {
  const struct {
    const char* folder;
    std::size_t files;
  } cases[] = {{"/models/demo", 1},
               {"/tests/data/golden/glm4_moe_lite", 1},
               {"/tests/data/golden/glm4_moe_lite_groups", 3}};
  for (const auto& c : cases) {
    const Opened o = open(std::string(GLINT_SOURCE_DIR) + c.folder, true, LogLevel::kWarn);
    ASSERT_TRUE(o.checkpoint) << o.error;
    const std::size_t weight_files =
        std::count_if(o.checkpoint->files().begin(), o.checkpoint->files().end(),
                      [](const std::string& name) { return name.starts_with("model"); });
    EXPECT_EQ(weight_files, c.files) << c.folder;
    EXPECT_NE(o.checkpoint->find("model.embed_tokens.weight"), nullptr);
    EXPECT_EQ(o.logged, "");
  }
}

TEST_F(CheckpointFolder, a_checkpoint_of_9000_tensors_in_48_shards_opens_well_within_a_second) {
  std::vector<std::pair<std::string, std::string>> map;
  for (int shard = 0; shard < 48; ++shard) {
    const std::string file = "model-" + std::to_string(shard + 1) + "-of-48.safetensors";
    std::vector<std::string> names;
    for (int i = 0; i < 188; ++i) {
      names.push_back("model.layers." + std::to_string(shard) + ".mlp.experts." +
                      std::to_string(i) + ".gate_proj.weight");
      map.emplace_back(names.back(), file);
    }
    write(file, file_with(names));
  }
  write(kIndex, index_of(map));
  const double start = thread_cpu_seconds();
  const Opened o = open(path());
  const double took = thread_cpu_seconds() - start;
  ASSERT_TRUE(o.checkpoint) << o.error;
  EXPECT_EQ(o.checkpoint->tensors().size(), 48u * 188u);
  EXPECT_LT(took, 0.5);
}

}  // namespace
}  // namespace glint
