// The one translation unit that compiles {fmt}'s functions. Everywhere else its headers only
// declare them, which saves seconds per file, and linking them in needs no shared library of the
// same version at run time.
#include <fmt/format-inl.h>

namespace fmt {
inline namespace v9 {
namespace detail {

template locale_ref::locale_ref(const std::locale&);
template std::locale locale_ref::get<std::locale>() const;
template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template thousands_sep_result<wchar_t> thousands_sep_impl<wchar_t>(locale_ref);
template char decimal_point_impl<char>(locale_ref);
template wchar_t decimal_point_impl<wchar_t>(locale_ref);
template dragonbox::decimal_fp<float> dragonbox::to_decimal<float>(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal<double>(double) noexcept;
template void vformat_to<char>(buffer<char>&, string_view, format_args, locale_ref);

}  // namespace detail
}  // namespace v9
}  // namespace fmt
