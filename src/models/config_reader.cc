#include "models/config_reader.h"

#include <fmt/format.h>

#include <cmath>

namespace glint {

ConfigReader::ConfigReader(const Json& config, std::string where)
    : config_(config), where_(std::move(where)) {}

void ConfigReader::fail(Error error) {
  if (!error_) error_ = std::move(error);
}

const Json* ConfigReader::value(std::string_view key) {
  seen_.emplace(key);
  const Json* found = config_.find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

bool ConfigReader::present(std::string_view key) {
  if (value(key) != nullptr) return true;
  fail(corrupt(fmt::format("{}: required key \"{}\" is missing", where_, key)));
  return false;
}

int ConfigReader::integer(std::string_view key, int low, int high) {
  if (!present(key)) return low;
  return integer_or(key, low, low, high);
}

int ConfigReader::integer_or(std::string_view key, int fallback, int low, int high) {
  const Json* found = value(key);
  if (found == nullptr) return fallback;
  if (!found->is_int()) {
    fail(corrupt(fmt::format("{}: \"{}\" must be an integer, not {}", where_, key, found->dump())));
    return low;
  }
  if (found->as_int() < low || found->as_int() > high) {
    fail(corrupt(fmt::format("{}: \"{}\" is {}, outside [{}, {}]", where_, key, found->as_int(),
                             low, high)));
    return low;
  }
  return static_cast<int>(found->as_int());
}

double ConfigReader::number(std::string_view key, double low, double high) {
  if (!present(key)) return low;
  return number_or(key, low, low, high);
}

double ConfigReader::number_or(std::string_view key, double fallback, double low, double high) {
  const Json* found = value(key);
  if (found == nullptr) return fallback;
  if (!found->is_number()) {
    fail(corrupt(fmt::format("{}: \"{}\" must be a number, not {}", where_, key, found->dump())));
    return low;
  }
  const double number = found->as_double();
  if (!std::isfinite(number) || number < low || number > high) {
    fail(
        corrupt(fmt::format("{}: \"{}\" is {}, outside [{}, {}]", where_, key, number, low, high)));
    return low;
  }
  return number;
}

bool ConfigReader::boolean(std::string_view key) {
  if (!present(key)) return false;
  return boolean_or(key, false);
}

bool ConfigReader::boolean_or(std::string_view key, bool fallback) {
  const Json* found = value(key);
  if (found == nullptr) return fallback;
  if (!found->is_bool()) {
    fail(corrupt(
        fmt::format("{}: \"{}\" must be true or false, not {}", where_, key, found->dump())));
    return fallback;
  }
  return found->as_bool();
}

std::string ConfigReader::text_or(std::string_view key, std::string_view fallback) {
  const Json* found = value(key);
  if (found == nullptr) return std::string(fallback);
  if (!found->is_string()) {
    fail(corrupt(fmt::format("{}: \"{}\" must be a string, not {}", where_, key, found->dump())));
    return std::string(fallback);
  }
  return found->as_string();
}

void ConfigReader::expect(std::string_view key, const Json& implemented, std::string_view why) {
  const Json* found = value(key);
  if (found == nullptr || *found == implemented) return;
  if (found->is_number() && implemented.is_number() &&
      found->as_double() == implemented.as_double())
    return;
  std::string shown = found->dump();
  if (shown.size() > 200) shown = shown.substr(0, 200) + "...";
  fail(unsupported(fmt::format("{}: \"{}\": {} is not supported ({})", where_, key, shown, why)));
}

void ConfigReader::ignore(std::initializer_list<std::string_view> keys) {
  for (std::string_view key : keys) seen_.emplace(key);
}

void ConfigReader::ignore_common() {
  ignore({"architectures",
          "model_type",
          "torch_dtype",
          "dtype",
          "transformers_version",
          "_name_or_path",
          "auto_map",
          "initializer_range",
          "use_cache",
          "pad_token_id",
          "bos_token_id",
          "eos_token_id",
          "sep_token_id",
          "attention_dropout",
          "output_attentions",
          "output_hidden_states",
          "return_dict",
          "is_encoder_decoder",
          "is_decoder",
          "id2label",
          "label2id",
          "problem_type",
          "finetuning_task",
          "task_specific_params",
          "output_router_logits",
          "router_aux_loss_coef",
          "aux_loss_alpha",
          "seq_aux",
          "pretraining_tp",
          "ep_size",
          "tokenizer_class",
          "chunk_size_feed_forward",
          "torchscript",
          "use_bfloat16",
          "_commit_hash",
          "attn_implementation",
          "_attn_implementation",
          "_attn_implementation_autoset",
          "_from_model_config",
          "unsloth_version",
          "unsloth_fixed"});
}

Status ConfigReader::finish() const {
  if (error_) return *error_;
  std::string unknown;
  for (const auto& [key, ignored] : config_.as_object()) {
    if (!seen_.contains(key)) unknown += (unknown.empty() ? "\"" : ", \"") + key + "\"";
  }
  if (!unknown.empty()) {
    return unsupported(
        fmt::format("{}: unknown key {}: this version does not know what it asks for; remove it if "
                    "it does not change inference",
                    where_, unknown));
  }
  return {};
}

namespace {

constexpr double kLowTheta = 1.0, kHighTheta = 1e12;

void read_rope_type(ConfigReader& reader, const Json& block, std::string_view name,
                    RopeConfig& rope) {
  for (std::string_view key : {"rope_type", "type"}) {
    const Json* type = block.find(key);
    if (type != nullptr && type->is_string()) rope.type = type->as_string();
  }
  if (rope.type != "default") {
    reader.fail(unsupported(
        fmt::format("config.json: \"{}\" asks for rope type \"{}\", which this family does not "
                    "support; only plain rope is",
                    name, rope.type)));
  }
}

void read_rope_parameters(ConfigReader& reader, const Json& block, RopeConfig& rope) {
  const auto within = [](const Json& value, double low, double high) {
    return value.is_number() && value.as_double() >= low && value.as_double() <= high;
  };
  read_rope_type(reader, block, "rope_parameters", rope);
  for (const auto& [key, value] : block.as_object()) {
    if (key == "rope_theta" && within(value, kLowTheta, kHighTheta)) {
      rope.theta = value.as_double();
    } else if (key == "partial_rotary_factor" && within(value, 0, 1)) {
      rope.partial_rotary_factor = value.as_double();
    } else if (key != "rope_type" && key != "type") {
      reader.fail(unsupported(fmt::format(
          "config.json: \"rope_parameters\".\"{}\": {} is not supported", key, value.dump())));
    }
  }
}

// `rope` holds what applies where no key says otherwise.
void read_rope(ConfigReader& reader, RopeConfig& rope) {
  rope.type = "default";
  if (const Json* parameters = reader.value("rope_parameters"); parameters != nullptr) {
    if (!parameters->is_object()) {
      reader.fail(corrupt("config.json: \"rope_parameters\" must be an object"));
      return;
    }
    read_rope_parameters(reader, *parameters, rope);
  }
  if (const Json* scaling = reader.value("rope_scaling"); scaling != nullptr) {
    if (scaling->is_object()) {
      read_rope_type(reader, *scaling, "rope_scaling", rope);
    } else {
      reader.fail(corrupt("config.json: \"rope_scaling\" must be null or an object"));
    }
  }
  if (rope.theta == 0) rope.theta = reader.number("rope_theta", kLowTheta, kHighTheta);
  reader.value("rope_theta");
}

}  // namespace

RopeConfig read_plain_rope(ConfigReader& reader) {
  RopeConfig rope;
  read_rope(reader, rope);
  if (rope.partial_rotary_factor != 1) {
    reader.fail(unsupported(fmt::format(
        "config.json: \"rope_parameters\".\"partial_rotary_factor\": {} is not supported (this "
        "family rotates all of its rope width)",
        rope.partial_rotary_factor)));
  }
  return rope;
}

RopeConfig read_partial_rope(ConfigReader& reader, double fallback) {
  RopeConfig rope;
  rope.partial_rotary_factor = reader.number_or("partial_rotary_factor", fallback, 0, 1);
  read_rope(reader, rope);
  return rope;
}

}  // namespace glint
