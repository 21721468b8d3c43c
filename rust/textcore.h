/* The C ABI of the textcore crate: tokenizers and Jinja templates. Included by src/text/rust_bridge.cc alone.
 *
 * Strings go in as (pointer, length) and need no terminator; a null pointer is allowed when the length is 0. Invalid
 * UTF-8 in text is read as U+FFFD. Results come out as buffers that the caller gives back with tc_bytes_free or
 * tc_ids_free, or as handles with a free function of their own. A function that returns a status leaves its outputs
 * empty, and `error` filled, unless the status is TC_OK. Handles are immutable: any number of threads may share one.
 * A panic never crosses this border: it becomes TC_INTERNAL. */
#ifndef TEXTCORE_H_
#define TEXTCORE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  TC_OK = 0,
  TC_INVALID = 1,     /* the input is wrong: a template that fails, a malformed variable */
  TC_CORRUPT = 2,     /* a file contradicts its format */
  TC_UNSUPPORTED = 3, /* understood and not implemented */
  TC_INTERNAL = 4     /* a fault in this crate */
};

typedef struct {
  uint8_t* data;
  size_t len;
  size_t capacity;
} TcBytes;

typedef struct {
  uint32_t* data;
  size_t len;
  size_t capacity;
} TcIds;

void tc_bytes_free(TcBytes bytes);
void tc_ids_free(TcIds ids);

typedef struct TcTokenizer TcTokenizer;

/* From the text of a tokenizer.json. */
int32_t tc_tokenizer_new(const uint8_t* json, size_t len, TcTokenizer** out, TcBytes* error);
void tc_tokenizer_free(TcTokenizer* tokenizer);

/* How a text is cut before it is encoded. */
enum {
  TC_ENCODE_MARKERS = 0, /* added tokens are recognised */
  TC_ENCODE_PLAIN = 1,   /* added tokens are ordinary text */
  TC_ENCODE_GUARDED = 2  /* added tokens are recognised unless a guard breaks them; guards are dropped */
};
int32_t tc_tokenizer_encode(const TcTokenizer* tokenizer, const uint8_t* text, size_t len, int32_t mode, TcIds* out,
                            TcBytes* error);
/* The text with a guard (U+E000) inside every added token's look-alike, and after an end that could begin one; other
 * guards are dropped. */
int32_t tc_tokenizer_guard(const TcTokenizer* tokenizer, const uint8_t* text, size_t len, TcBytes* out,
                           TcBytes* error);

/* One past the largest id. */
uint32_t tc_tokenizer_size(const TcTokenizer* tokenizer);
enum { TC_TOKEN_KNOWN = 1, TC_TOKEN_ADDED = 2, TC_TOKEN_SPECIAL = 4 };
/* The flags of a token, 0 when unknown. *data and *len are its raw bytes, valid as long as the handle. */
uint32_t tc_tokenizer_token(const TcTokenizer* tokenizer, uint32_t id, const uint8_t** data, size_t* len);
/* The id of a whole token given as text, -1 when there is none. */
int64_t tc_tokenizer_find(const TcTokenizer* tokenizer, const uint8_t* content, size_t len);

typedef struct TcTemplate TcTemplate;

/* TC_CORRUPT with line and column when the template does not parse. */
int32_t tc_template_new(const uint8_t* source, size_t len, TcTemplate** out, TcBytes* error);
void tc_template_free(TcTemplate* chat_template);
/* `variables` is the text of a JSON object. */
int32_t tc_template_render(const TcTemplate* chat_template, const uint8_t* variables, size_t len, TcBytes* out,
                           TcBytes* error);

#ifdef __cplusplus
}
#endif

#endif /* TEXTCORE_H_ */
