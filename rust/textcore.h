/* The C ABI of the textcore crate: tokenizers, Jinja templates and grammars, which src/text/rust_bridge.cc alone
 * includes, and decoders of images, which src/media/decode.cc includes.
 *
 * Strings go in as (pointer, length) and need no terminator; a null pointer is allowed when the length is 0. Invalid
 * UTF-8 in text is read as U+FFFD. Results come out as buffers that the caller gives back with tc_bytes_free or
 * tc_ids_free, or as handles with a free function of their own. A function that returns a status leaves its outputs
 * empty, and `error` filled, unless the status is TC_OK. Handles are immutable, but for matchers: any number of threads may share
 * one.
 * A panic never crosses this border: it becomes TC_INTERNAL. */
#ifndef TEXTCORE_H_
#define TEXTCORE_H_

#include <stdbool.h>
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

typedef struct TcVocabulary TcVocabulary;

/* What a token is to a grammar: text, a marker that only its name allows, or nothing. */
enum { TC_USE_TEXT = 0, TC_USE_MARKER = 1, TC_USE_NEVER = 2 };
/* Tokens 0 to size - 1: their bytes one after the other, their lengths, their uses. `ends` may end a sentence. */
int32_t tc_vocabulary_new(const uint8_t* bytes, const uint32_t* lengths, const uint8_t* uses, size_t size,
                          const uint32_t* ends, size_t num_ends, TcVocabulary** out, TcBytes* error);
void tc_vocabulary_free(TcVocabulary* vocabulary);

typedef struct TcGrammar TcGrammar;

enum { TC_GRAMMAR_JSON_SCHEMA = 0, TC_GRAMMAR_REGEX = 1, TC_GRAMMAR_LARK = 2 };
/* TC_INVALID when the text does not compile within the limits. Needs nothing of the vocabulary afterwards. */
int32_t tc_grammar_new(const TcVocabulary* vocabulary, int32_t kind, const uint8_t* text, size_t len, TcGrammar** out,
                       TcBytes* error);
void tc_grammar_free(TcGrammar* grammar);

/* A place in a grammar; mutable, for one thread at a time. Needs nothing of the grammar after it was made. */
typedef struct TcMatcher TcMatcher;

int32_t tc_matcher_new(const TcGrammar* grammar, TcMatcher** out, TcBytes* error);
void tc_matcher_free(TcMatcher* matcher);
/* One bit per token: which may come next. `len` words, enough for the vocabulary. */
int32_t tc_matcher_mask(TcMatcher* matcher, uint32_t* words, size_t len, TcBytes* error);
/* *accepted false: the token is not allowed here, and nothing changed. */
int32_t tc_matcher_accept(TcMatcher* matcher, uint32_t token, bool* accepted, TcBytes* error);
int32_t tc_matcher_rollback(TcMatcher* matcher, size_t count, TcBytes* error);
/* How many of the tokens in a row could be accepted. */
int32_t tc_matcher_num_allowed(TcMatcher* matcher, const uint32_t* tokens, size_t len, size_t* allowed, TcBytes* error);
/* What was accepted is a whole sentence; and nothing but an end token may follow. */
int32_t tc_matcher_state(TcMatcher* matcher, bool* complete, bool* stopped, TcBytes* error);

/* A PNG, JPEG or WebP image as rows of RGB, 3 * width * height bytes, upright as its EXIF data says. TC_INVALID: it has
 * more than max_pixels. */
int32_t tc_image_decode(const uint8_t* bytes, size_t len, uint64_t max_pixels, uint32_t* width, uint32_t* height,
                        TcBytes* rgb, TcBytes* error);

/* A hash under a key that is this process's own: equal for equal bytes, and nobody can choose two that collide. */
uint64_t tc_keyed_hash(const uint8_t* bytes, size_t len);

#ifdef __cplusplus
}
#endif

#endif /* TEXTCORE_H_ */
