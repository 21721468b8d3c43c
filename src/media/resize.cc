#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "media/image.h"

namespace glint {
namespace {

// Weights are whole numbers of 2^-22, so that sums of bytes times weights fit 32 bits: Pillow's
// src/libImaging/Resample.c.
constexpr int kWeightBits = 22;
constexpr double kSupport = 2.0;

// Keys' cubic with a = -1/2 (doi 10.1109/TASSP.1981.1163711).
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

std::size_t size(int n) {
  return static_cast<std::size_t>(n);
}

// Which inputs make up each output along one direction, and how much.
struct Taps {
  int most = 0;              // weights of one output
  std::vector<int> first;    // [outputs]
  std::vector<int> count;    // [outputs]
  std::vector<int> weights;  // [outputs, most]
};

Taps find_taps(int in, int out) {
  const double scale = static_cast<double>(in) / out;
  const double stretch = std::max(scale, 1.0);
  const double support = kSupport * stretch;
  Taps taps;
  taps.most = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.first.resize(size(out));
  taps.count.resize(size(out));
  taps.weights.resize(size(out) * size(taps.most));
  std::vector<double> exact(size(taps.most));
  for (int i = 0; i < out; ++i) {
    const double center = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int end = std::min(in, static_cast<int>(center + support + 0.5));
    double sum = 0;
    for (int x = first; x < end; ++x) {
      const double weight = cubic((x - center + 0.5) * (1.0 / stretch));
      exact[size(x - first)] = weight;
      sum += weight;
    }
    taps.first[size(i)] = first;
    taps.count[size(i)] = end - first;
    for (int x = 0; x < end - first; ++x) {
      const double weight = exact[size(x)] / sum * (1 << kWeightBits);
      taps.weights[size(i) * size(taps.most) + size(x)] =
          static_cast<int>(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
  }
  return taps;
}

std::uint8_t to_byte(int sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

constexpr int kHalf = 1 << (kWeightBits - 1);

Image resize_rows(const Image& image, int width) {
  const Taps taps = find_taps(image.width, width);
  Image out{width, image.height, {}};
  out.rgb.resize(out.row_bytes() * size(out.height));
  for (int y = 0; y < image.height; ++y) {
    const std::uint8_t* from = image.rgb.data() + size(y) * image.row_bytes();
    std::uint8_t* to = out.rgb.data() + size(y) * out.row_bytes();
    for (int x = 0; x < width; ++x) {
      const int* weights = taps.weights.data() + size(x) * size(taps.most);
      const std::uint8_t* pixel = from + size(taps.first[size(x)]) * 3;
      int sums[3] = {kHalf, kHalf, kHalf};
      for (int i = 0; i < taps.count[size(x)]; ++i) {
        for (int c = 0; c < 3; ++c) sums[c] += weights[i] * *pixel++;
      }
      for (const int sum : sums) *to++ = to_byte(sum);
    }
  }
  return out;
}

Image resize_columns(const Image& image, int height) {
  const Taps taps = find_taps(image.height, height);
  Image out{image.width, height, {}};
  out.rgb.resize(out.row_bytes() * size(out.height));
  std::vector<int> sums(out.row_bytes());
  for (int y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), kHalf);
    for (int i = 0; i < taps.count[size(y)]; ++i) {
      const int weight = taps.weights[size(y) * size(taps.most) + size(i)];
      const std::uint8_t* from = image.rgb.data() + size(taps.first[size(y)] + i) * out.row_bytes();
      for (std::size_t x = 0; x < sums.size(); ++x) sums[x] += weight * from[x];
    }
    std::uint8_t* to = out.rgb.data() + size(y) * out.row_bytes();
    std::transform(sums.begin(), sums.end(), to, to_byte);
  }
  return out;
}

}  // namespace

Image resize_bicubic(const Image& image, int width, int height) {
  GLINT_CHECK(image.width > 0 && image.height > 0 && width > 0 && height > 0);
  Image out = width == image.width ? image : resize_rows(image, width);
  return height == out.height ? out : resize_columns(out, height);
}

}  // namespace glint
