#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "base/aligned.h"
#include "temp_folder.h"

namespace glint {
namespace {

namespace fs = std::filesystem;

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(MappedFile, holds_the_bytes_and_outlives_the_name) {
  TempFolder folder;
  const fs::path path = folder.write("a", "hello");
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  fs::remove(path);
  EXPECT_EQ(as_text((*file)->bytes()), "hello");
  EXPECT_EQ((*file)->path(), path);
  (*file)->release(0, 1 << 20);
  (*file)->release(1000, 1);
  EXPECT_EQ(as_text((*file)->bytes()), "hello");
}

TEST(MappedFile, follows_symbolic_links) {
  TempFolder folder;
  folder.write("blobs/x", "linked");
  fs::create_symlink("blobs/x", folder.path() / "link");
  const auto file = MappedFile::open(folder.path() / "link");
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(as_text((*file)->bytes()), "linked");
}

TEST(MappedFile, refuses_what_is_no_file_with_bytes_and_names_it) {
  TempFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const fs::path empty = folder.write("empty", "");
  const struct {
    fs::path path;
    ErrorCode code;
  } cases[] = {{folder.path() / "absent", ErrorCode::kNotFound},
               {folder.path(), ErrorCode::kInvalidArgument},
               {pipe, ErrorCode::kInvalidArgument},
               {empty, ErrorCode::kInvalidArgument}};
  for (const auto& c : cases) {
    const auto file = MappedFile::open(c.path);
    ASSERT_FALSE(file.has_value()) << c.path;
    EXPECT_EQ(file.error().code, c.code) << file.error().message;
    EXPECT_NE(file.error().message.find(c.path.string()), std::string::npos)
        << file.error().message;
  }
}

TEST(ReadTextFile, reads_up_to_the_limit_and_refuses_one_byte_more) {
  TempFolder folder;
  const fs::path path = folder.write("a", "12345");
  EXPECT_EQ(read_text_file(path, 5).value(), "12345");
  const auto refused = read_text_file(path, 4);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("limit of 4 bytes"), std::string::npos);
  EXPECT_EQ(read_text_file(folder.write("empty", ""), 0).value(), "");
}

TEST(ReadTextFile, reads_files_whose_size_the_system_reports_as_0) {
  const auto text = read_text_file("/proc/self/status", 1 << 20);
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("Name:"), std::string::npos);
  EXPECT_FALSE(read_text_file("/proc/self/status", 10).has_value());
}

TEST(ReadTextFile, refuses_folders_and_absent_files) {
  TempFolder folder;
  EXPECT_EQ(read_text_file(folder.path(), 10).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(read_text_file(folder.path() / "absent", 10).error().code, ErrorCode::kNotFound);
}

TEST(WriteFile, replaces_the_whole_file_and_leaves_nothing_beside_it) {
  TempFolder folder;
  const fs::path path = folder.write("a", "a long old content");
  ASSERT_TRUE(write_file_atomically(path, "new").has_value());
  EXPECT_EQ(read_text_file(path, 100).value(), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(WriteFile, says_which_folder_is_missing) {
  TempFolder folder;
  const auto status = write_file_atomically(folder.path() / "no" / "file", "x");
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message.find("no/file"), std::string::npos);
}

TEST(AlignedBuffer, is_aligned_zero_and_writable_at_every_size) {
  for (const std::size_t nbytes :
       {std::size_t{1}, std::size_t{63}, std::size_t{4096}, (std::size_t{2} << 20) - 1,
        std::size_t{2} << 20, (std::size_t{5} << 20) + 3}) {
    AlignedBuffer buffer(nbytes);
    EXPECT_EQ(buffer.size(), nbytes);
    const std::size_t alignment = nbytes >= (std::size_t{2} << 20) ? std::size_t{2} << 20 : 64;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment, 0u) << nbytes;
    for (const std::size_t at : {std::size_t{0}, nbytes / 2, nbytes - 1})
      EXPECT_EQ(buffer.data()[at], std::byte{0});
    std::memset(buffer.data(), 0xff, nbytes);
    EXPECT_EQ(buffer.data()[nbytes - 1], std::byte{0xff});
  }
}

TEST(AlignedBuffer, moves_hand_the_memory_over) {
  AlignedBuffer a(100);
  std::byte* const data = a.data();
  AlignedBuffer b(std::move(a));
  EXPECT_EQ(b.data(), data);
  AlignedBuffer c(std::size_t{4} << 20);
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
  EXPECT_EQ(c.size(), 100u);
  EXPECT_EQ(AlignedBuffer(0).data(), nullptr);
}

}  // namespace
}  // namespace glint
