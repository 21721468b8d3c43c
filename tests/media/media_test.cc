// Against Pillow and the image processor of transformers: reference/make_media.py made
// tests/data/media.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "media/canvas.h"
#include "media/image.h"

namespace glint {
namespace {

using ::testing::HasSubstr;

std::string path_of(const std::string& name) {
  return std::string(GLINT_TEST_DATA) + "/media/" + name;
}

std::string bytes_of(const std::string& name) {
  auto bytes = read_text_file(path_of(name), 1u << 20);
  EXPECT_TRUE(bytes.has_value()) << name;
  return bytes.value_or("");
}

Image image_of(const std::string& name) {
  auto image = decode_image(bytes_of(name));
  EXPECT_TRUE(image.has_value()) << name << ": " << (image ? "" : image.error().message);
  return image ? std::move(*image) : Image{};
}

const Json& cases(const char* kind) {
  static const Json all = *parse_json(bytes_of("cases.json"));
  return *all.find(kind);
}

const std::string& text(const Json& entry, const char* key) {
  return entry.find(key)->as_string();
}

int integer(const Json& entry, const char* key) {
  return static_cast<int>(entry.find(key)->as_int());
}

void expect_same(const Image& image, const Image& expected, int tolerance,
                 const std::string& what) {
  ASSERT_EQ(image.width, expected.width) << what;
  ASSERT_EQ(image.height, expected.height) << what;
  ASSERT_EQ(image.rgb.size(), expected.rgb.size()) << what;
  int worst = 0;
  for (std::size_t i = 0; i < image.rgb.size(); ++i)
    worst = std::max(worst, std::abs(int{image.rgb[i]} - int{expected.rgb[i]}));
  EXPECT_LE(worst, tolerance) << what;
}

TEST(Media, files_become_what_pillow_makes_of_them) {
  ASSERT_GT(cases("decode").as_array().size(), 20u);
  for (const Json& entry : cases("decode").as_array()) {
    expect_same(image_of(text(entry, "file")), image_of(text(entry, "expected")),
                integer(entry, "tolerance"), text(entry, "file"));
  }
}

// Pillow 13 does the columns first where the height shrinks and the width grows.
TEST(Media, scaling_is_pillows) {
  ASSERT_FALSE(cases("resize").as_array().empty());
  for (const Json& entry : cases("resize").as_array()) {
    const int width = integer(entry, "width"), height = integer(entry, "height");
    const Image image = image_of(text(entry, "file"));
    const bool columns_first = height < image.height && width > image.width;
    expect_same(resize_bicubic(image, width, height), image_of(text(entry, "expected")),
                columns_first ? 1 : 0, text(entry, "expected"));
  }
}

TEST(Media, canvas_sizes_are_the_processors) {
  ASSERT_FALSE(cases("sizes").as_array().empty());
  for (const Json& entry : cases("sizes").as_array()) {
    const auto at = [&](std::size_t i) { return static_cast<int>(entry.as_array()[i].as_int()); };
    CanvasRules rules;
    rules.min_tokens = at(2);
    rules.max_tokens = at(3);
    const CanvasSize canvas = canvas_size(rules, at(0), at(1));
    EXPECT_EQ(canvas.width, at(4)) << entry.dump();
    EXPECT_EQ(canvas.height, at(5)) << entry.dump();
    EXPECT_EQ(canvas.content_width, at(6)) << entry.dump();
    EXPECT_EQ(canvas.content_height, at(7)) << entry.dump();
  }
}

TEST(Media, patches_are_the_processors) {
  ASSERT_FALSE(cases("patches").as_array().empty());
  for (const Json& entry : cases("patches").as_array()) {
    CanvasRules rules;
    rules.patch_size = integer(entry, "patch_size");
    rules.min_tokens = integer(entry, "min_tokens");
    rules.max_tokens = integer(entry, "max_tokens");
    const Image canvas = make_canvas(rules, image_of(text(entry, "file")));
    EXPECT_EQ(canvas.width / rules.patch_size, integer(entry, "width"));
    EXPECT_EQ(canvas.height / rules.patch_size, integer(entry, "height"));
    const std::vector<float> values = make_patches(rules, canvas);
    const Json::Array& expected = entry.find("values")->as_array();
    ASSERT_EQ(values.size(), expected.size());
    // A level of a pixel, for the order in which Pillow scales; few, and none unless it shrank.
    std::size_t num_off = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], expected[i].as_double(), 0.0152) << text(entry, "file") << " " << i;
      if (std::fabs(values[i] - expected[i].as_double()) > 2e-5) ++num_off;
    }
    EXPECT_LE(num_off, rules.max_tokens < 64 ? values.size() / 8 : 0u) << text(entry, "file");
  }
}

std::string complaint(std::string_view bytes) {
  const auto image = decode_image(bytes);
  EXPECT_FALSE(image.has_value());
  return image ? "" : image.error().message;
}

TEST(Media, what_is_no_image_is_named) {
  EXPECT_THAT(complaint(""), HasSubstr("empty"));
  EXPECT_THAT(complaint("hello"), HasSubstr("no image"));
  EXPECT_THAT(complaint("GIF89a\1\0\1\0"), HasSubstr("GIF"));
  EXPECT_THAT(complaint("<svg/>"), HasSubstr("SVG"));
  EXPECT_THAT(complaint(std::string("\0\0\0\x20"
                                    "ftypavif",
                                    12)),
              HasSubstr("AVIF"));
}

TEST(Media, cut_off_files_are_refused) {
  for (const char* name : {"rgb.png", "interlaced.png", "palette.png", "colour.jpg",
                           "progressive.jpg", "half_colour.jpg", "lossless.webp", "lossy.webp"}) {
    const std::string bytes = bytes_of(name);
    ASSERT_GT(bytes.size(), 100u);
    for (const std::size_t kept : {bytes.size() * 3 / 4, bytes.size() / 2, std::size_t{30},
                                   std::size_t{12}, std::size_t{4}}) {
      EXPECT_FALSE(decode_image(std::string_view(bytes).substr(0, kept)).has_value())
          << name << " " << kept;
    }
  }
}

// Every byte of every file changed: an error or an image of a bounded size, and no crash.
TEST(Media, damaged_files_do_no_harm) {
  for (const char* name : {"palette.png", "half_colour.jpg", "progressive.jpg", "lossy.webp",
                           "lossless_alpha.webp", "animated.webp", "turned_6.jpg"}) {
    std::string bytes = bytes_of(name);
    for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 400); ++i) {
      for (const char flip : {'\x01', '\x80', '\xff'}) {
        bytes[i] = static_cast<char>(bytes[i] ^ flip);
        const auto image = decode_image(bytes);
        if (image) {
          EXPECT_LE(image->rgb.size(), kMaxImagePixels * 3);
        } else {
          EXPECT_NE(image.error().code, ErrorCode::kInternal)
              << name << " " << i << ": " << image.error().message;
        }
        bytes[i] = static_cast<char>(bytes[i] ^ flip);
      }
    }
  }
}

void put_big_endian(std::string& bytes, std::size_t at, std::uint32_t value) {
  for (int i = 0; i < 4; ++i)
    bytes[at + static_cast<std::size_t>(i)] = static_cast<char>(value >> (24 - 8 * i) & 0xFF);
}

std::uint32_t crc32(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

TEST(Media, promised_sizes_are_judged_before_anything_is_decoded) {
  std::string png = bytes_of("rgb.png");
  put_big_endian(png, 16, 60'000);
  put_big_endian(png, 20, 60'000);
  put_big_endian(png, 29, crc32(std::string_view(png).substr(12, 17)));
  EXPECT_THAT(complaint(png), HasSubstr("60000 x 60000 pixels"));
  put_big_endian(png, 16, 1);
  put_big_endian(png, 20, 100'000);
  put_big_endian(png, 29, crc32(std::string_view(png).substr(12, 17)));
  EXPECT_THAT(complaint(png), HasSubstr("1 x 100000 pixels"));

  std::string jpeg = bytes_of("colour.jpg");
  const std::size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  for (std::size_t i = 5; i < 9; ++i) jpeg[frame + i] = '\xff';
  EXPECT_THAT(complaint(jpeg), HasSubstr("65535 x 65535 pixels"));

  // The file says 24 x 17, its frame 16383 x 16383.
  std::string webp = bytes_of("lossy.webp");
  const std::size_t start = webp.find("\x9d\x01\x2a");
  ASSERT_NE(start, std::string::npos);
  for (const std::size_t i : {4u, 6u}) {
    webp[start + i - 1] = '\xff';
    webp[start + i] = '\x3f';
  }
  EXPECT_THAT(complaint(webp), HasSubstr("16383 x 16383 pixels"));
  EXPECT_THAT(complaint(std::string(kMaxImageBytes + 1, 'x')), HasSubstr("bytes"));
}

TEST(Media, rules_come_from_the_file_and_what_differs_is_refused) {
  const auto read = [](const char* json) {
    return read_canvas_rules(*parse_json(json), "p.json", CanvasRules{});
  };
  const auto rules = read(
      R"({"patch_size": 14, "max_image_tokens": 900, "image_mean": [0.5, 0.5, 0.25], "rescale_factor": 0.00392156862745098})");
  ASSERT_TRUE(rules.has_value()) << rules.error().message;
  EXPECT_EQ(rules->max_tokens, 900);
  EXPECT_EQ(rules->min_tokens, 16);
  EXPECT_FLOAT_EQ(rules->mean[2], 0.25f);
  for (const char* json : {R"({"patch_size": 16})", R"({"merge_size": 4})", R"({"resample": 2})",
                           R"({"do_resize": false})", R"({"patch_expand_factor": 2})",
                           R"({"max_image_tokens": 0})", R"({"image_std": [0.5, 0, 0.5]})",
                           R"({"image_mean": [0.5]})", R"({"rescale_factor": 1})"}) {
    const auto refused = read(json);
    ASSERT_FALSE(refused.has_value()) << json;
    EXPECT_THAT(refused.error().message, HasSubstr("p.json: ")) << json;
  }
}

}  // namespace
}  // namespace glint
