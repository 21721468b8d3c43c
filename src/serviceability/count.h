// Whole numbers that stay at the largest once they leave 63 bits, so that the sizes of a hostile
// config may be multiplied without care and be refused at the end.
#pragma once

#include <concepts>
#include <cstdint>

namespace glint {

class Count {
 public:
  static constexpr std::uint64_t kMost = (std::uint64_t{1} << 63) - 1;

  constexpr Count() = default;
  template <std::integral T>
  constexpr Count(T value)  // NOLINT(google-explicit-constructor): a number is a count
      : value_(value<0 || static_cast<std::uint64_t>(value)> kMost
                   ? kMost
                   : static_cast<std::uint64_t>(value)) {}

  constexpr std::uint64_t value() const { return value_; }
  constexpr bool saturated() const { return value_ == kMost; }

  friend constexpr Count operator*(Count a, Count b) {
    std::uint64_t product = 0;
    if (__builtin_mul_overflow(a.value_, b.value_, &product)) return kMost;
    return product;
  }
  friend constexpr Count operator+(Count a, Count b) { return a.value_ + b.value_; }
  constexpr Count& operator+=(Count other) { return *this = *this + other; }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace glint
