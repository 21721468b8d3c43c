#include "tools/demo_data.h"

#include <array>

// GLINT_DEMO_DIR comes from the build and is read by the assembler only: no path ends up in the
// program.
#define GLINT_EMBED(symbol, file)          \
  asm(".pushsection .rodata\n"             \
      ".balign 64\n"                       \
      "glint_demo_" symbol                 \
      ":\n"                                \
      ".incbin \"" GLINT_DEMO_DIR "/" file \
      "\"\n"                               \
      "glint_demo_" symbol                 \
      "_end:\n"                            \
      ".byte 0\n"                          \
      ".global glint_demo_" symbol         \
      "\n"                                 \
      ".hidden glint_demo_" symbol         \
      "\n"                                 \
      ".global glint_demo_" symbol         \
      "_end\n"                             \
      ".hidden glint_demo_" symbol         \
      "_end\n"                             \
      ".popsection\n")

GLINT_EMBED("config", "config.json");
GLINT_EMBED("generation_config", "generation_config.json");
GLINT_EMBED("tokenizer", "tokenizer.json");
GLINT_EMBED("tokenizer_config", "tokenizer_config.json");
GLINT_EMBED("special_tokens_map", "special_tokens_map.json");
GLINT_EMBED("chat_template", "chat_template.jinja");
GLINT_EMBED("model", "model.safetensors");

#define GLINT_DECLARE(symbol)                   \
  extern const std::byte glint_demo_##symbol[]; \
  extern const std::byte glint_demo_##symbol##_end[]

extern "C" {
GLINT_DECLARE(config);
GLINT_DECLARE(generation_config);
GLINT_DECLARE(tokenizer);
GLINT_DECLARE(tokenizer_config);
GLINT_DECLARE(special_tokens_map);
GLINT_DECLARE(chat_template);
GLINT_DECLARE(model);
}

#define GLINT_FILE(symbol, file)                     \
  EmbeddedFile {                                     \
    file, {                                          \
      glint_demo_##symbol, glint_demo_##symbol##_end \
    }                                                \
  }

namespace glint {

std::span<const EmbeddedFile> demo_files() {
  static const std::array kFiles = {
      GLINT_FILE(config, "config.json"),
      GLINT_FILE(generation_config, "generation_config.json"),
      GLINT_FILE(tokenizer, "tokenizer.json"),
      GLINT_FILE(tokenizer_config, "tokenizer_config.json"),
      GLINT_FILE(special_tokens_map, "special_tokens_map.json"),
      GLINT_FILE(chat_template, "chat_template.jinja"),
      GLINT_FILE(model, "model.safetensors"),
  };
  return kFiles;
}

}  // namespace glint
