#include "server/http_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/parser.hpp>
#include <limits>
#include <optional>
#include <utility>

#include "server/http_text.h"

namespace glint {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

// A string that grows with what arrives. Beast's own reserves what Content-Length promises, which
// lets a thousand promises take all memory.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      const std::size_t before = body_.size();
      for (const boost::asio::const_buffer buffer : boost::beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      return body_.size() - before;
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

using Parser = http::request_parser<GrowingBody>;

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::ptrdiff_t count_headers(const HttpRequest& request, std::string_view name) {
  return std::ranges::count(request.headers, name,
                            [](const auto& header) -> std::string_view { return header.first; });
}

}  // namespace

struct RequestReader::Impl {
  explicit Impl(const HttpOptions& given) : options(given) {
    parser.header_limit(static_cast<std::uint32_t>(std::min<std::size_t>(
        options.max_header_bytes, std::numeric_limits<std::uint32_t>::max())));
    // The body's limit is set once the path is known, so that the refusal can be of its API.
    parser.body_limit(std::numeric_limits<std::uint64_t>::max());
    parser.eager(false);
  }

  const HttpOptions& options;
  Parser parser;
  HttpRequest request;
  State state = State::kHeader;
  bool wants_continue = false;
  int status = 0;
  std::string message;

  void fail(int with_status, std::string why) {
    state = State::kFailed;
    status = with_status;
    message = std::move(why);
  }
  void fail_parse(error_code error);
  void guess_start_line(std::string_view bytes);
  void on_header();
  bool check_target();
  void set_host(std::string authority);
  bool check_framing();
  bool check_demands();
};

void RequestReader::Impl::fail_parse(error_code error) {
  if (error == http::error::header_limit) {
    return fail(431, fmt::format("The request headers exceed {} bytes.", options.max_header_bytes));
  }
  if (error == http::error::body_limit) {
    return fail(413, fmt::format("The request body exceeds {} bytes; see --max-body-mib.",
                                 options.max_body_bytes));
  }
  fail(400, "The request is not well-formed HTTP: " + error.message() + ".");
}

// What a header that is refused as a whole would have asked for, so that the refusal can be of its
// API.
void RequestReader::Impl::guess_start_line(std::string_view bytes) {
  bytes = bytes.substr(0, bytes.find_first_of("\r\n"));
  const std::size_t method_end = bytes.find(' ');
  if (method_end == std::string_view::npos) return;
  const std::string_view target = bytes.substr(method_end + 1);
  if (auto parsed = parse_target(target.substr(0, target.find(' ')))) {
    request.path = std::move(parsed->path);
  }
}

void RequestReader::Impl::on_header() {
  const auto& head = parser.get();
  for (const auto& field : head) {
    request.headers.emplace_back(
        lower_case({field.name_string().data(), field.name_string().size()}),
        std::string(field.value()));
  }
  request.method = std::string(head.method_string());
  const std::string_view id = request.header("x-request-id");
  request.id = is_request_id(id) ? std::string(id) : "req-" + random_name(24);
  if (!check_target() || !check_framing() || !check_demands()) return;
  parser.body_limit(options.max_body_bytes);
  parser.eager(true);
  state = parser.is_done() ? State::kDone : State::kBody;
}

bool RequestReader::Impl::check_target() {
  const auto text = parser.get().target();
  auto target = parse_target({text.data(), text.size()});
  if (!target) {
    fail(400, "The request target must be a path of visible ASCII characters.");
    return false;
  }
  request.path = std::move(target->path);
  request.query = std::move(target->query);
  const auto hosts = count_headers(request, "host");
  if (hosts > 1 || (hosts == 0 && parser.get().version() >= 11)) {
    fail(400, "One Host header is needed.");
    return false;
  }
  if (!target->authority.empty()) set_host(std::move(target->authority));
  return true;
}

// RFC 9112, 3.2.2: the host of an absolute target is the one that counts.
void RequestReader::Impl::set_host(std::string authority) {
  for (auto& [name, value] : request.headers) {
    if (name == "host") {
      value = std::move(authority);
      return;
    }
  }
  request.headers.emplace_back("host", std::move(authority));
}

// Where this parser and a proxy's could see the request's end in different places, it is refused:
// the difference would be taken for another request.
bool RequestReader::Impl::check_framing() {
  const auto num_lengths = count_headers(request, "content-length");
  const auto num_codings = count_headers(request, "transfer-encoding");
  if (num_lengths > 1 || (num_lengths == 1 && !is_number(request.header("content-length")))) {
    fail(400, "One Content-Length with one number is needed.");
    return false;
  }
  if (num_codings == 0) {
    const auto length = parser.content_length();
    if (!length || *length <= options.max_body_bytes) return true;
    fail_parse(http::error::body_limit);
    return false;
  }
  if (num_codings > 1 || num_lengths > 0 || parser.get().version() < 11 ||
      lower_case(request.header("transfer-encoding")) != "chunked") {
    fail(400, "The only Transfer-Encoding understood is chunked, without Content-Length.");
    return false;
  }
  return true;
}

bool RequestReader::Impl::check_demands() {
  const std::string encoding = lower_case(request.header("content-encoding"));
  if (!encoding.empty() && encoding != "identity") {
    fail(415, "Compressed request bodies are not supported; send the body as it is.");
    return false;
  }
  const std::string expect = lower_case(request.header("expect"));
  if (!expect.empty() && expect != "100-continue") {
    fail(417, "The only expectation understood is 100-continue.");
    return false;
  }
  wants_continue = !expect.empty() && !parser.is_done() && parser.get().version() >= 11;
  return true;
}

RequestReader::RequestReader(const HttpOptions& options) : impl_(std::make_unique<Impl>(options)) {}
RequestReader::~RequestReader() = default;

std::size_t RequestReader::put(std::string_view bytes) {
  Impl& impl = *impl_;
  error_code error;
  const std::size_t used = impl.parser.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  if (error && error != http::error::need_more) {
    if (impl.state == State::kHeader) impl.guess_start_line(bytes);
    impl.fail_parse(error);
  } else if (impl.state == State::kHeader && impl.parser.is_header_done()) {
    impl.on_header();
  } else if (impl.state == State::kBody && impl.parser.is_done()) {
    impl.state = State::kDone;
  } else if (impl.state == State::kBody && bytes.size() - used > impl.options.max_header_bytes) {
    // A chunk's first line or the trailers; Beast looks for their end without a limit.
    impl.fail(400, "A line of the chunked body is too long.");
  }
  return used;
}

RequestReader::State RequestReader::state() const {
  return impl_->state;
}
const HttpRequest& RequestReader::request() const {
  return impl_->request;
}
bool RequestReader::keep_alive() const {
  return impl_->parser.get().keep_alive();
}
bool RequestReader::is_http10() const {
  return impl_->parser.get().version() < 11;
}
bool RequestReader::wants_continue() const {
  return impl_->wants_continue;
}

HttpRequest RequestReader::take() {
  HttpRequest request = std::move(impl_->request);
  request.body = std::move(impl_->parser.get().body());
  return request;
}

int RequestReader::failed_status() const {
  return impl_->status;
}
const std::string& RequestReader::failed_message() const {
  return impl_->message;
}

}  // namespace glint
