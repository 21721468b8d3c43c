// Runs tests/engine/*.scenario: what comes in, how many steps, what must be true then. One command
// per line, # comments:
//
//   engine slots=2 chunk=16 context=256 pages=16 reuse=1        first line; what is left out has
//   these values submit NAME prompt=TEXT:N,TEXT:N,! max=N [stop_at=K] [min=N] [salt=N]
//        N tokens of the endless text TEXT, and so on; ! is a token that makes logits NaN. stop_at:
//        the K-th token of the greedy answer is a stop id.
//   cancel NAME
//   step [N]      run            N steps, or until nothing is left
//   expect ran START+COUNT ...   the sequences of the last step, in order
//   expect NAME state=waiting|running|stop|length|cancelled|error [tokens=N] [cached=N]
//   [error=WORD] expect stats KEY=N ...       running waiting steps finished failed cancelled
//   preemptions free cached leased
//
// Every token must be the fake model's greedy choice, and the cache must be whole after every line.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "engine/step_loop.h"
#include "fake_model.h"

namespace glint {
namespace {

using Tokens = std::vector<std::int32_t>;
using Words = std::vector<std::string>;
using Options = std::map<std::string, std::string>;

struct Client {
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  Tokens expected;
  std::size_t tokens = 0;
  std::string state = "waiting";
  Usage usage;
  std::string error;
};

Tokens parse_prompt(const std::string& text) {
  Tokens tokens;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    if (part == "!") {
      tokens.push_back(FakeModel::kPoison);
      continue;
    }
    const std::size_t colon = part.find(':');
    for (const auto token : fake_text(part.substr(0, colon), std::stoi(part.substr(colon + 1)))) {
      tokens.push_back(token);
    }
  }
  return tokens;
}

// key=value words from `first` on.
Options parse_options(const Words& words, std::size_t first) {
  Options options;
  for (std::size_t i = first; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    EXPECT_NE(equals, std::string::npos) << words[i];
    options[words[i].substr(0, equals)] = words[i].substr(equals + 1);
  }
  return options;
}

// The number under `key`, which is then used up.
int take(Options& options, const std::string& key, int otherwise) {
  const auto it = options.find(key);
  if (it == options.end()) return otherwise;
  const int value = std::stoi(it->second);
  options.erase(it);
  return value;
}

class Player {
 public:
  ~Player() {
    if (loop_ == nullptr) return;
    loop_->cancel_all();
    rig_->cache.check_integrity();
    EXPECT_EQ(rig_->cache.stats().leased_pages, 0u);
  }
  void play(const std::string& line) {
    Words words;
    std::istringstream stream(line.substr(0, line.find('#')));
    for (std::string word; stream >> word;) words.push_back(word);
    if (words.empty()) return;
    if (words[0] == "engine") {
      make_engine(parse_options(words, 1));
    } else if (words[0] == "submit") {
      submit(words.at(1), parse_options(words, 2));
    } else if (words[0] == "cancel") {
      clients_.at(words.at(1)).cancelled->store(true);
    } else if (words[0] == "step") {
      for (int i = words.size() > 1 ? std::stoi(words[1]) : 1; i > 0; --i) loop_->step();
    } else if (words[0] == "run") {
      for (int i = 0; !loop_->idle() && i < 10000; ++i) loop_->step();
      EXPECT_TRUE(loop_->idle());
    } else if (words[0] == "expect" && words.at(1) == "ran") {
      expect_ran(Words(words.begin() + 2, words.end()));
    } else if (words[0] == "expect" && words.at(1) == "stats") {
      expect_stats(parse_options(words, 2));
    } else if (words[0] == "expect") {
      expect_client(words.at(1), parse_options(words, 2));
    } else {
      ADD_FAILURE() << "no such command: " << words[0];
    }
    rig_->cache.check_integrity();
  }

 private:
  void make_engine(Options given) {
    const int pages = take(given, "pages", 16);
    const bool reuse = take(given, "reuse", 1) != 0;
    options_.context = take(given, "context", 256);
    options_.max_sequences = take(given, "slots", 2);
    options_.max_batch_tokens = take(given, "chunk", 16);
    options_.prefix_reuse = reuse;
    EXPECT_TRUE(given.empty()) << given.begin()->first;
    rig_ = std::make_unique<FakeRig>(static_cast<std::size_t>(pages), reuse);
    loop_ = std::make_unique<StepLoop>(rig_->model, rig_->exec, rig_->cache, options_, [] {});
  }

  void submit(const std::string& name, Options given) {
    ASSERT_FALSE(clients_.contains(name)) << name;
    Client& client = clients_[name];
    GenerateRequest request{.prompt = parse_prompt(given.at("prompt")),
                            .sampling = {.temperature = 0}};
    given.erase("prompt");
    request.max_tokens = take(given, "max", 1);
    client.expected = FakeModel::greedy(request.prompt, request.max_tokens);
    request.min_tokens = take(given, "min", 0);
    if (const int k = take(given, "stop_at", 0); k > 0) {
      request.stop_ids = {client.expected.at(static_cast<std::size_t>(k - 1))};
    }
    request.cache_salt = static_cast<std::uint64_t>(take(given, "salt", 0));
    EXPECT_TRUE(given.empty()) << given.begin()->first;
    const auto sink = [&client, masked = request.min_tokens > 0](TokenEvent event) {
      on_event(client, event, masked);
    };
    auto sequence = make_sequence(std::move(request), sink, client.cancelled, FakeModel::kVocabSize,
                                  options_.context);
    ASSERT_TRUE(sequence.has_value()) << sequence.error().message;
    loop_->add(std::move(*sequence));
  }

  static void on_event(Client& client, const TokenEvent& event, bool masked) {
    if (event.kind != TokenEvent::Kind::kToken) client.usage = event.usage;
    switch (event.kind) {
      case TokenEvent::Kind::kStarted:
        EXPECT_EQ(client.state, "waiting");
        client.state = "running";
        break;
      case TokenEvent::Kind::kProgress:
      case TokenEvent::Kind::kPrompt:
        break;
      case TokenEvent::Kind::kToken:
        EXPECT_EQ(client.state, "running");
        // What min_tokens masks changes the answer; those scenarios look at counts only.
        if (!masked) {
          EXPECT_EQ(event.token, client.expected.at(client.tokens));
        }
        ++client.tokens;
        break;
      case TokenEvent::Kind::kFinished:
        client.state = std::array{"stop", "length", "cancelled",
                                  "error"}[static_cast<std::size_t>(event.reason)];
        client.error = event.error.message;
        break;
    }
  }

  void expect_ran(const Words& expected) {
    Words ran;
    for (const auto& span : rig_->model.steps.back()) {
      ran.push_back(std::to_string(span.start) + "+" + std::to_string(span.count));
    }
    EXPECT_EQ(ran, expected);
  }

  void expect_stats(const Options& expected) {
    const EngineStats stats = loop_->stats();
    const std::map<std::string, std::uint64_t> values = {
        {"running", static_cast<std::uint64_t>(stats.running)},
        {"waiting", static_cast<std::uint64_t>(stats.waiting)},
        {"steps", stats.steps},
        {"finished", stats.finished},
        {"failed", stats.failed},
        {"cancelled", stats.cancelled},
        {"preemptions", stats.preemptions},
        {"free", stats.cache.free_pages},
        {"cached", stats.cache.cached_pages},
        {"leased", stats.cache.leased_pages}};
    for (const auto& [key, value] : expected) EXPECT_EQ(values.at(key), std::stoull(value)) << key;
  }

  void expect_client(const std::string& name, Options expected) {
    const Client& client = clients_.at(name);
    EXPECT_EQ(client.state, expected.at("state"));
    expected.erase("state");
    const int tokens = static_cast<int>(client.tokens);
    EXPECT_EQ(tokens, take(expected, "tokens", tokens));
    EXPECT_EQ(client.usage.cached_tokens, take(expected, "cached", client.usage.cached_tokens));
    if (expected.contains("error")) {
      EXPECT_NE(client.error.find(expected.at("error")), std::string::npos) << client.error;
      expected.erase("error");
    }
    EXPECT_TRUE(expected.empty()) << expected.begin()->first;
  }

  EngineOptions options_;
  std::unique_ptr<FakeRig> rig_;
  std::unique_ptr<StepLoop> loop_;
  std::map<std::string, Client> clients_;
};

std::vector<std::filesystem::path> scenario_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(GLINT_SOURCE_DIR "/tests/engine")) {
    if (entry.path().extension() == ".scenario") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

class Scenario : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(Scenario, holds) {
  std::ifstream file(GetParam());
  ASSERT_TRUE(file.good());
  Player player;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    SCOPED_TRACE(GetParam().filename().string() + ":" + std::to_string(number) + ": " + line);
    player.play(line);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(files, Scenario, testing::ValuesIn(scenario_files()),
                         [](const auto& file) { return file.param.stem().string(); });

}  // namespace
}  // namespace glint
