// The paths of the server and what stands behind each.
#pragma once

#include <expected>
#include <string_view>

#include "server/answer.h"
#include "server/http.h"
#include "server/served_model.h"

namespace glint {

struct Route {
  enum class Kind {
    kNone,
    kPage,
    kHealth,
    kLive,
    kVersion,
    kMetrics,
    kModels,
    kModel,
    kProps,
    kSlots,
    kGenerate,      // an Answer
    kText,          // computed on the worker without running the model
    kCache,         // an action on the prefix cache
    kNotSupported,  // 501
  };
  // Needs the text side of the model only.
  using Text = std::expected<Json, ApiError> (*)(const ServedModel& model, std::string_view body);

  Kind kind = Kind::kNone;
  bool is_post = false;
  bool is_guarded = false;
  ErrorShape shape = ErrorShape::kOpenAi;
  GenerateRoute generate = {};
  Text text = nullptr;
  CacheAction cache = CacheAction::kSave;
  std::string_view label = {};  // of the path, for metrics
};

Route find_route(std::string_view path);

// What follows /v1/models/ or /models/, percent-decoded.
std::string model_of_path(std::string_view path);

}  // namespace glint
