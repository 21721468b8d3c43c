// Configs of released models (tests/data/configs) and what a profile makes of them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/json_file.h"
#include "serviceability/facts.h"
#include "serviceability/profile.h"

namespace glint {

inline std::filesystem::path config_path(const std::string& name) {
  return std::filesystem::path(GLINT_TEST_DATA) / "configs" / (name + ".json");
}

inline Json load_config(const std::string& name) {
  auto config = read_json_object(config_path(name));
  EXPECT_TRUE(config) << config.error().message;
  return config ? std::move(*config) : Json(Json::Object{});
}

inline ModelProfile profile_of(const Json& config) {
  auto profile = read_profile(config);
  EXPECT_TRUE(profile) << profile.error().message;
  return profile ? std::move(*profile) : ModelProfile{};
}

inline ModelProfile profile_of(const char* name) {
  return profile_of(load_config(name));
}

inline std::vector<std::string> config_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(GLINT_TEST_DATA) / "configs")) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  return names;
}

}  // namespace glint
