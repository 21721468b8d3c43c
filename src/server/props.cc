#include "server/props.h"

#include <utility>

namespace glint {
namespace {

Json object(Json::Object members) {
  return Json(std::move(members));
}

Json defaults_json(const ServedModel& model) {
  Json params(Json::Object{{"temperature", Json(1.0)},
                           {"top_p", Json(1.0)},
                           {"top_k", Json(0)},
                           {"min_p", Json(0.0)},
                           {"repeat_penalty", Json(1.0)},
                           {"presence_penalty", Json(0.0)},
                           {"frequency_penalty", Json(0.0)}});
  for (const auto& [key, value] : model.text->sampling_defaults().as_object()) {
    params.set(key == "repetition_penalty" ? "repeat_penalty" : key, value);
  }
  return object({{"n_ctx", Json(model.engine->options().context)}, {"params", std::move(params)}});
}

Json mtp_json(const DraftStats& drafts) {
  return object({{"mode", Json(std::string(draft_mode_name(drafts.mode)))},
                 {"drafts", Json(drafts.num_drafts)},
                 {"paused", Json(drafts.paused)},
                 {"drafted_tokens", Json(drafts.drafted)},
                 {"accepted_tokens", Json(drafts.accepted)}});
}

}  // namespace

Json props_json(const ServedModel& model, const ServedInfo& info, const ServerOptions& options) {
  Json about = object({{"name", Json(model.names.front())},
                       {"family", Json(info.model.family)},
                       {"model_type", Json(info.model.model_type)},
                       {"attention", Json(info.model.attention_class)},
                       {"weights", Json(info.model.weight_format)},
                       {"parameters", Json(info.model.total_parameters)},
                       {"active_parameters", Json(info.model.active_parameters)}});
  return object({{"default_generation_settings", defaults_json(model)},
                 {"total_slots", Json(model.engine->options().max_sequences)},
                 {"model_path", Json(options.model_root)},
                 {"model_alias", Json(model.names.front())},
                 {"chat_template", Json(model.text->template_source())},
                 {"modalities",
                  object({{"vision", Json(model.text->takes_images())}, {"audio", Json(false)}})},
                 {"build_info", Json("glint " + options.version)},
                 {"model", std::move(about)},
                 {"tool_parser", Json(std::string(name_of(model.text->tool_format())))},
                 {"reasoning_parser", Json(std::string(name_of(model.text->reasoning_format())))},
                 {"mtp", mtp_json(model.engine->stats().drafts)},
                 {"machine", info.machine}});
}

Json slots_json(const Engine& engine) {
  const EngineStats stats = engine.stats();
  Json out(Json::Array{});
  for (int slot = 0; slot < engine.options().max_sequences; ++slot) {
    out.push_back(object({{"id", Json(slot)},
                          {"n_ctx", Json(engine.options().context)},
                          {"is_processing", Json(slot < stats.running)},
                          {"speculative", Json(stats.drafts.num_drafts > 0)}}));
  }
  return out;
}

Json version_json(const ServerOptions& options, const Json& machine) {
  Json build(Json::Object{});
  if (const Json* isa = machine.find("isa")) build.set("isa", Json(Json::Array{*isa}));
  return object({{"version", Json(options.version)},
                 {"commit", options.commit.empty() ? Json() : Json(options.commit)},
                 {"build", std::move(build)},
                 {"api", object({{"openai", Json("v1")}, {"anthropic", Json("2023-06-01")}})}});
}

Json model_json(const std::string& name, const std::string& root, std::int64_t created,
                const ModelInfo& info, int context, bool takes_images) {
  Json meta = object({{"n_vocab", Json(info.vocab_size)},
                      {"n_ctx_train", Json(info.max_position_embeddings)},
                      {"n_embd", Json(info.hidden_size)},
                      {"n_params", Json(info.total_parameters)},
                      {"size", Json(info.weight_bytes)},
                      {"ftype", Json(info.weight_format)}});
  const Json text(Json::Array{Json("text")});
  Json input = text;
  if (takes_images) input.push_back(Json("image"));
  return object({{"id", Json(name)},
                 {"object", Json("model")},
                 {"created", Json(created)},
                 {"owned_by", Json("glint")},
                 {"root", Json(root)},
                 {"parent", Json()},
                 {"max_model_len", Json(context)},
                 {"meta", std::move(meta)},
                 {"architecture",
                  object({{"input_modalities", std::move(input)}, {"output_modalities", text}})}});
}

}  // namespace glint
