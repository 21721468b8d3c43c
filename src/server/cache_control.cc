#include "server/cache_control.h"

namespace glint {

Json cache_json(const CacheReport& report) {
  Json json(Json::Object{{"object", Json("cache.action")}});
  const bool clears = report.action == CacheAction::kClear;
  json.set("action", Json(clears                                   ? "clear"
                          : report.action == CacheAction::kRestore ? "restore"
                                                                   : "save"));
  json.set("pages", Json(report.pages));
  json.set("snapshots", Json(report.snapshots));
  json.set("bytes", Json(report.bytes));
  if (clears) {
    json.set("disk_entries", Json(report.disk_entries));
    json.set("disk_bytes", Json(report.disk_bytes));
  } else {
    json.set("pages_present", Json(report.present));
    json.set("left_out", Json(report.left_out));
  }
  return json;
}

ApiError cache_error(const Error& error) {
  if (error.code != ErrorCode::kUnsupported) return error_of(error);
  ApiError told = error_of_status(409, error.message);
  told.code = "prefix_cache_not_configured";
  return told;
}

}  // namespace glint
