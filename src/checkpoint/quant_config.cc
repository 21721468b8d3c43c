#include "checkpoint/quant_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace glint {
namespace {

constexpr std::int64_t kMaxGroup = 1 << 20;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

template <typename T>
void add_once(std::vector<T>& list, const T& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

// Reads one object; the first error stays.
class Reader {
 public:
  Reader(const Json& json, QuantConfig& out) : json_(json), out_(out) {}

  Status read() {
    if (const Json* method = value(json_, "quant_method")) {
      if (!method->is_string()) {
        wrong("quant_method", *method);
      } else {
        out_.method = lower(method->as_string());
      }
    } else if (const Json* producer = value(json_, "producer");
               producer != nullptr && producer->find("name") != nullptr &&
               *producer->find("name") == Json("modelopt")) {
      out_.method = "modelopt";
    } else {
      fail(unsupported(
          fmt::format("{} has no \"quant_method\": how are the weights quantised?", out_.where)));
    }
    if (!error_) read_method();
    if (error_) return *error_;
    return {};
  }

 private:
  // nullptr where the key is absent or null.
  static const Json* value(const Json& object, std::string_view key) {
    const Json* found = object.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }

  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }
  void wrong(std::string_view key, const Json& value) {
    fail(corrupt(fmt::format("{}: \"{}\" is {}", out_.where, key, shown(value))));
  }
  void refuse(std::string_view key, const Json& value, std::string_view known) {
    fail(unsupported(fmt::format("{}: \"{}\" is {}, which is not supported{}{}", out_.where, key,
                                 shown(value), known.empty() ? "" : "; supported: ", known)));
  }
  static std::string shown(const Json& value) {
    std::string text = value.dump();
    constexpr std::size_t kLongest = 80;
    if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
    return text;
  }

  std::optional<std::int64_t> integer(const Json& object, std::string_view key) {
    const Json* number = value(object, key);
    if (number == nullptr) return std::nullopt;
    if (number->is_int()) return number->as_int();
    wrong(key, *number);
    return std::nullopt;
  }
  std::optional<bool> boolean(const Json& object, std::string_view key) {
    const Json* flag = value(object, key);
    if (flag == nullptr) return std::nullopt;
    if (flag->is_bool()) return flag->as_bool();
    wrong(key, *flag);
    return std::nullopt;
  }
  // One of `known`, in lower case; empty when absent, or after an error.
  std::string word(const Json& object, std::string_view key,
                   std::initializer_list<std::string_view> known) {
    const Json* text = value(object, key);
    if (text == nullptr) return "";
    if (text->is_string()) {
      std::string found = lower(text->as_string());
      if (std::find(known.begin(), known.end(), found) != known.end()) return found;
    }
    refuse(key, *text, fmt::format("{}", fmt::join(known, ", ")));
    return "";
  }
  // A list of names of modules: which ones are quantised follows from their tensors.
  void names(std::string_view key) {
    const Json* list = value(json_, key);
    if (list == nullptr) return;
    const bool good = list->is_array() && std::ranges::all_of(list->as_array(), [](const Json& n) {
                        return n.is_string();
                      });
    if (!good) wrong(key, *list);
  }
  void add_group(std::optional<std::int64_t> size) {
    if (!size || *size == -1) return;  // a whole row
    if (*size < 1 || *size > kMaxGroup) return wrong("group_size", Json(*size));
    add_once(out_.groups, static_cast<std::size_t>(*size));
  }
  void add_block(std::string_view key, const Json& list) {
    const bool pair = list.is_array() && list.as_array().size() == 2 &&
                      std::ranges::all_of(list.as_array(), [](const Json& n) {
                        return n.is_int() && n.as_int() >= 1 && n.as_int() <= kMaxGroup;
                      });
    if (!pair) return wrong(key, list);
    add_once(out_.f8_blocks, {static_cast<std::size_t>(list.as_array()[0].as_int()),
                              static_cast<std::size_t>(list.as_array()[1].as_int())});
  }
  void add_symmetry(bool symmetric) {
    if (!saw_symmetry_) out_.symmetric = symmetric;
    if (out_.symmetric != symmetric) out_.symmetric = std::nullopt;
    saw_symmetry_ = true;
  }
  void add_scheme(std::string scheme) { add_once(out_.schemes, scheme); }

  void read_method() {
    struct Method {
      std::string_view name;
      void (Reader::*read)();
    };
    const Method methods[] = {
        {"fp8", &Reader::read_fp8},
        {"fbgemm_fp8", &Reader::read_fp8},
        {"modelopt", &Reader::read_modelopt},
        {"modelopt_fp4", &Reader::read_modelopt},
        {"modelopt_fp8", &Reader::read_modelopt},
        {"modelopt_mixed", &Reader::read_modelopt},
        {"compressed-tensors", &Reader::read_compressed},
        {"awq", &Reader::read_awq},
        {"gptq", &Reader::read_gptq},
        {"quark", &Reader::read_quark},
        {"mxfp4", &Reader::read_mxfp4},
    };
    std::vector<std::string_view> known;
    for (const Method& method : methods) {
      if (method.name == out_.method) return (this->*method.read)();
      known.push_back(method.name);
    }
    refuse("quant_method", Json(out_.method), fmt::format("{}", fmt::join(known, ", ")));
  }

  void read_fp8() {
    add_scheme("FP8");
    word(json_, "fmt", {"e4m3", "float8_e4m3fn"});
    word(json_, "activation_scheme", {"dynamic", "static"});
    if (const Json* block = value(json_, "weight_block_size"))
      add_block("weight_block_size", *block);
    names("modules_to_not_convert");
    names("ignored_layers");
  }

  // A scheme as ModelOpt names it.
  void add_algorithm(const Json& object) {
    const std::string algorithm = word(object, "quant_algo",
                                       {"nvfp4", "w4a16_nvfp4", "fp8", "fp8_pb_wo",
                                        "fp8_per_channel_per_token", "mixed_precision"});
    if (algorithm.ends_with("nvfp4")) add_scheme("NVFP4");
    if (algorithm.starts_with("fp8")) add_scheme("FP8");
    if (algorithm == "mixed_precision") out_.schemes = {"FP8", "NVFP4"};
    // Of NVFP4 it is 16, which the tensors say too.
    add_group(integer(object, "group_size"));
  }

  void read_modelopt() {
    const Json* inner = value(json_, "quantization");  // as in hf_quant_config.json
    const Json& object = inner != nullptr ? *inner : json_;
    add_algorithm(object);
    if (const Json* layers = value(object, "quantized_layers"); layers && layers->is_object()) {
      for (const auto& [name, layer] : layers->as_object()) add_algorithm(layer);
    }
    names("ignore");
    names("exclude_modules");
    if (out_.schemes.empty() && value(json_, "config_groups") != nullptr) read_groups();
  }

  void read_compressed() {
    const std::initializer_list<std::string_view> formats = {
        "pack-quantized",  "int-quantized",        "float-quantized",
        "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
        "mixed-precision", "mxfp8-quantized",      "dense"};
    word(json_, "format", formats);
    word(json_, "quantization_status", {"compressed", "frozen"});
    if (const Json* sparsity = value(json_, "sparsity_config"))
      word(*sparsity, "format", {"dense"});
    if (const Json* transform = value(json_, "transform_config");
        transform != nullptr && value(*transform, "config_groups") != nullptr &&
        *value(*transform, "config_groups") != Json(Json::Object{})) {
      refuse("transform_config", *transform, "none");
    }
    names("ignore");
    if (const Json* groups = value(json_, "config_groups"); groups && groups->is_object()) {
      for (const auto& [name, group] : groups->as_object()) word(group, "format", formats);
    }
    read_groups();
  }

  void read_groups() {
    const Json* groups = value(json_, "config_groups");
    if (groups == nullptr) return;
    if (!groups->is_object()) return wrong("config_groups", *groups);
    for (const auto& [name, group] : groups->as_object()) {
      if (const Json* weights = value(group, "weights")) read_weights(*weights);
    }
  }

  // How one group stores its weights.
  void read_weights(const Json& weights) {
    const std::string type = word(weights, "type", {"int", "float"});
    const std::string strategy =
        word(weights, "strategy", {"tensor", "channel", "group", "block", "tensor_group"});
    word(weights, "actorder", {"weight", "static", "group", "dynamic"});  // group: see weight_g_idx
    if (boolean(weights, "dynamic").value_or(false)) refuse("dynamic", Json(true), "false");
    const auto bits = integer(weights, "num_bits");
    if (bits && *bits != 4 && *bits != 8) return refuse("num_bits", Json(*bits), "4, 8");
    const auto group = integer(weights, "group_size");
    add_group(group);
    if (const Json* block = value(weights, "block_structure"); block && block->is_array())
      add_block("block_structure", *block);
    if (!bits) return;
    if (type == "float" && *bits == 8) return add_scheme("FP8");
    if (type == "float") return add_scheme(group == 32 ? "MXFP4" : "NVFP4");
    add_scheme(fmt::format("INT{}", *bits));
    if (const auto symmetric = boolean(weights, "symmetric")) add_symmetry(*symmetric);
  }

  void read_bits(std::initializer_list<int> known) {
    const auto bits = integer(json_, "bits");
    const auto wide = bits ? bits : integer(json_, "w_bit");
    if (!wide) return;
    if (std::find(known.begin(), known.end(), *wide) == known.end())
      return refuse("bits", Json(*wide), fmt::format("{}", fmt::join(known, ", ")));
    out_.bits = static_cast<int>(*wide);
  }

  void read_awq() {
    read_bits({4});
    add_scheme("INT4");
    word(json_, "version", {"gemm"});
    if (!boolean(json_, "zero_point").value_or(true)) refuse("zero_point", Json(false), "true");
    add_group(
        integer(json_, value(json_, "group_size") != nullptr ? "group_size" : "q_group_size"));
    names("modules_to_not_convert");
  }

  void read_gptq() {
    read_bits({4, 8});
    add_scheme(fmt::format("INT{}", out_.bits.value_or(4)));
    const std::string format = word(json_, "checkpoint_format", {"gptq", "gptq_v2"});
    out_.gptq_zeros_less_one = format != "gptq_v2";
    if (boolean(json_, "is_marlin_format").value_or(false))
      refuse("is_marlin_format", Json(true), "false");
    add_group(integer(json_, "group_size"));
  }

  // Its tensors say all that is read of it.
  void read_quark() {}
  void read_mxfp4() { add_scheme("MXFP4"); }

  const Json& json_;
  QuantConfig& out_;
  std::optional<Error> error_;
  bool saw_symmetry_ = false;
};

}  // namespace

std::string undeclared_schemes(const QuantConfig& config, const std::set<std::string>& found) {
  std::vector<std::string> others;
  for (const std::string& scheme : found) {
    if (std::ranges::find(config.schemes, scheme) == config.schemes.end()) others.push_back(scheme);
  }
  if (others.empty()) return "";
  if (config.method.empty()) {
    return fmt::format("config.json does not say that weights are quantised, but they are: {}",
                       fmt::join(others, ", "));
  }
  if (config.schemes.empty()) return "";  // it leaves that to the tensors
  return fmt::format("{} ({}) declares {}, but there are {} weights too: the tensors decide",
                     config.where, config.method, fmt::join(config.schemes, ", "),
                     fmt::join(others, ", "));
}

Result<QuantConfig> parse_quant_config(const Json& json, std::string where) {
  QuantConfig config;
  config.where = std::move(where);
  if (!json.is_object()) return corrupt(fmt::format("{} is no object", config.where));
  GLINT_TRY_VOID(Reader(json, config).read());
  return config;
}

Result<QuantConfig> read_quant_config(const Checkpoint& checkpoint) {
  const auto at = [](const Json* object, std::string_view key) {
    const Json* found = object == nullptr ? nullptr : object->find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  };
  const Json* config = &checkpoint.config();
  if (const Json* found = at(config, "quantization_config"))
    return parse_quant_config(*found, "config.json: \"quantization_config\"");
  if (const Json* found = at(at(config, "text_config"), "quantization_config"))
    return parse_quant_config(*found, "config.json: \"text_config.quantization_config\"");
  if (!checkpoint.hf_quant_config().is_null())
    return parse_quant_config(checkpoint.hf_quant_config(), "hf_quant_config.json");
  return QuantConfig{};
}

}  // namespace glint
