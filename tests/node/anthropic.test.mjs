// The official @anthropic-ai/sdk against a served demo model; GLINT_URL is its address.
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({
  baseURL: process.env.GLINT_URL,
  apiKey: "unused",
  maxRetries: 0,
  timeout: 120_000,
});
const base = {
  model: "claude-any",
  max_tokens: 200,
  messages: [{ role: "user", content: "What is 4 + 1?" }],
};
const off = { thinking: { type: "disabled" } };
const exchange = {
  name: "exchange",
  description: "Convert money.",
  input_schema: {
    type: "object",
    properties: { amount: { type: "integer" }, from: { type: "string" }, to: { type: "string" } },
    required: ["amount", "from", "to"],
  },
};

test("a message has its thought and its text", async () => {
  const message = await client.messages.create(base);
  assert.deepEqual(message.content.map((block) => block.type), ["thinking", "text"]);
  assert.equal(message.content[1].text, "4 + 1 = 5");
  assert.ok(message.content[0].signature);
  assert.equal(message.stop_reason, "end_turn");
  assert.equal(message.model, "claude-any");
});

test("a stream adds up to the same message", async () => {
  const whole = await client.messages.create(base);
  const stream = client.messages.stream(base);
  let text = "";
  let thought = "";
  stream.on("text", (piece) => (text += piece));
  stream.on("thinking", (piece) => (thought += piece));
  const message = await stream.finalMessage();
  assert.deepEqual(message.content, whole.content);
  assert.equal(text, whole.content[1].text);
  assert.equal(thought, whole.content[0].thinking);
  assert.equal(message.stop_reason, whole.stop_reason);
  assert.equal(message.usage.output_tokens, whole.usage.output_tokens);
});

test("tools make a round trip", async () => {
  const question = { role: "user", content: "How much is 90 dollars in euros?" };
  const request = { ...base, messages: [question], tools: [exchange] };
  for (const message of [
    await client.messages.create(request),
    await client.messages.stream(request).finalMessage(),
  ]) {
    const call = message.content.find((block) => block.type === "tool_use");
    assert.equal(message.stop_reason, "tool_use");
    assert.equal(call.name, "exchange");
    assert.deepEqual(call.input, { amount: 90, from: "dollars", to: "euros" });
    const result = { type: "tool_result", tool_use_id: call.id, content: '{"amount": 323}' };
    const answer = await client.messages.create({
      ...request,
      messages: [question, { role: "assistant", content: message.content },
        { role: "user", content: [result] }],
    });
    assert.equal(answer.stop_reason, "end_turn");
    assert.equal(answer.content.at(-1).text, "90 dollars is 323 euros.");
  }
});

test("tokens are counted before they are paid", async () => {
  const counted = await client.messages.countTokens({ model: "claude-any", messages: base.messages });
  const { usage } = await client.messages.create(base);
  assert.equal(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
});

test("errors are of their class", async () => {
  await assert.rejects(client.messages.create({ ...base, max_tokens: 0 }), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.equal(error.error.error.type, "invalid_request_error");
    assert.match(error.error.error.message, /^max_tokens/);
    return true;
  });
  const long = [{ role: "user", content: "word ".repeat(9000) }];
  await assert.rejects(
    client.messages.create({ ...base, messages: long }),
    /prompt is too long: \d+ tokens > 8192 maximum/,
  );
});

test("a stream can be left early", async () => {
  const stream = client.messages.stream({ ...base, ...off });
  for await (const event of stream) {
    if (event.type === "content_block_delta") break;
  }
  const after = await client.messages.create({ ...base, ...off });
  assert.equal(after.content[0].text, "4 + 1 = 5");
});

test("models are listed", async () => {
  const list = await client.models.list();
  assert.equal(list.data[0].id, "demo");
  assert.equal((await client.models.retrieve("demo")).type, "model");
});
