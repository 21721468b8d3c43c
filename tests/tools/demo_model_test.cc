// The embedded demo model: unpacked once, repaired when damaged, and temporary where nothing can be
// kept.
#include "tools/demo_model.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "base/file.h"
#include "tools/demo_data.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

class DemoModelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "glint-demo-test-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    home_ = name;
    setenv("XDG_CACHE_HOME", home_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("XDG_CACHE_HOME");
    fs::remove_all(home_);
  }
  static void expect_whole(const fs::path& folder) {
    for (const EmbeddedFile& file : demo_files()) {
      const auto mapped = MappedFile::open(folder / file.name);
      ASSERT_TRUE(mapped) << mapped.error().message;
      EXPECT_TRUE(std::ranges::equal((*mapped)->bytes(), file.bytes)) << file.name;
    }
  }
  fs::path home_;
};

TEST_F(DemoModelTest, the_embedded_files_are_those_of_the_source_tree) {
  EXPECT_EQ(demo_files().size(), 7u);
  expect_whole(fs::path(GLINT_SOURCE_DIR) / "models" / "demo");
}

TEST_F(DemoModelTest, it_is_unpacked_once_and_reused) {
  const auto first = unpack_demo_model();
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->path(), home_ / "glint" / demo_folder_name());
  EXPECT_FALSE(first->temporary());
  expect_whole(first->path());
  struct stat before = {}, after = {};
  const fs::path weights = first->path() / "model.safetensors";
  ASSERT_EQ(stat(weights.c_str(), &before), 0);
  ASSERT_TRUE(unpack_demo_model());
  ASSERT_EQ(stat(weights.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
}

TEST_F(DemoModelTest, damaged_files_are_written_again) {
  const auto first = unpack_demo_model();
  ASSERT_TRUE(first);
  fs::resize_file(first->path() / "model.safetensors", 1000);
  {
    std::fstream file(first->path() / "tokenizer.json", std::ios::in | std::ios::out);
    file.seekp(100);
    file << "#";
  }
  fs::remove(first->path() / "config.json");
  const auto again = unpack_demo_model();
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->path(), first->path());
  expect_whole(again->path());
}

TEST_F(DemoModelTest, without_a_usable_cache_folder_it_is_temporary_and_goes_away) {
  std::ofstream(home_ / "file") << "in the way";
  setenv("XDG_CACHE_HOME", (home_ / "file").c_str(), 1);
  fs::path path;
  {
    const auto folder = unpack_demo_model();
    ASSERT_TRUE(folder) << folder.error().message;
    EXPECT_TRUE(folder->temporary());
    path = folder->path();
    expect_whole(path);
    struct stat info = {};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777u, 0700u);
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(DemoModelTest, other_names_are_paths) {
  const auto folder = model_folder("some/folder");
  ASSERT_TRUE(folder);
  EXPECT_EQ(folder->path(), "some/folder");
  EXPECT_FALSE(folder->temporary());
}

}  // namespace
}  // namespace glint
