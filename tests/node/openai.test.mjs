// The official openai package against a served demo model; GLINT_URL is its address.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: `${process.env.GLINT_URL}/v1`,
  apiKey: "unused",
  maxRetries: 0,
  timeout: 120_000,
});
const model = "demo";
const question = { role: "user", content: "What is 4 + 1?" };
const exchange = {
  name: "exchange",
  description: "Convert money.",
  parameters: {
    type: "object",
    properties: { amount: { type: "integer" }, from: { type: "string" }, to: { type: "string" } },
    required: ["amount", "from", "to"],
  },
};
const dollars = { role: "user", content: "Convert 289 dollars to yen." };
const yen = { amount: 289, from: "dollars", to: "yen" };

test("a chat stream adds up to the whole answer", async () => {
  const whole = await client.chat.completions.create({ model, messages: [question] });
  const { message, finish_reason } = whole.choices[0];
  assert.equal(message.content, "4 + 1 = 5");
  assert.equal(finish_reason, "stop");
  const stream = await client.chat.completions.create({
    model,
    messages: [question],
    stream: true,
    stream_options: { include_usage: true },
  });
  let content = "";
  let thought = "";
  let usage = null;
  for await (const chunk of stream) {
    content += chunk.choices[0]?.delta.content ?? "";
    thought += chunk.choices[0]?.delta.reasoning_content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(content, message.content);
  assert.equal(thought, message.reasoning_content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("the chat stream helper finds content and calls", async () => {
  const talk = client.chat.completions.stream({ model, messages: [question] });
  let shown = "";
  talk.on("content", (piece) => (shown += piece));
  assert.equal(await talk.finalContent(), "4 + 1 = 5");
  assert.equal(shown, "4 + 1 = 5");
  const calling = client.chat.completions.stream({
    model,
    messages: [dollars],
    tools: [{ type: "function", function: exchange }],
  });
  const call = await calling.finalFunctionToolCall();
  assert.equal(call.name, "exchange");
  assert.deepEqual(JSON.parse(call.arguments), yen);
});

test("chat tools make a round trip", async () => {
  const request = { model, tools: [{ type: "function", function: exchange }] };
  const first = await client.chat.completions.create({ ...request, messages: [dollars] });
  const { message, finish_reason } = first.choices[0];
  assert.equal(finish_reason, "tool_calls");
  assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), yen);
  const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: '{"result": 43350}' };
  const second = await client.chat.completions.create({
    ...request,
    messages: [dollars, message, result],
  });
  assert.ok(second.choices[0].message.content);
});

test("the tool runner runs tools", async () => {
  const asked = [];
  const runner = client.chat.completions.runTools({
    model,
    messages: [dollars],
    tools: [
      {
        type: "function",
        function: {
          ...exchange,
          parse: JSON.parse,
          function: (args) => {
            asked.push(args);
            return '{"result": 43350}';
          },
        },
      },
    ],
  });
  assert.ok(await runner.finalContent());
  assert.deepEqual(asked, [yen]);
});

test("a response stream adds up to the whole response", async () => {
  const request = { model, input: [question] };
  const whole = await client.responses.create(request);
  assert.deepEqual(whole.output.map((item) => item.type), ["reasoning", "message"]);
  assert.equal(whole.output_text, "4 + 1 = 5");
  const numbers = [];
  let last = null;
  let shown = "";
  for await (const event of await client.responses.create({ ...request, stream: true })) {
    numbers.push(event.sequence_number);
    if (event.type === "response.output_text.delta") shown += event.delta;
    last = event;
  }
  assert.deepEqual(numbers, numbers.map((_, index) => index));
  assert.equal(last.type, "response.completed");
  assert.equal(shown, whole.output_text);
  assert.equal(last.response.usage.output_tokens, whole.usage.output_tokens);
});

test("the response stream helper follows", async () => {
  const stream = client.responses.stream({ model, input: [question] });
  let shown = "";
  stream.on("response.output_text.delta", (event) => {
    shown += event.delta;
    assert.equal(event.snapshot, shown);
  });
  const final = await stream.finalResponse();
  assert.equal(final.output_text, "4 + 1 = 5");
  assert.equal(shown, "4 + 1 = 5");
});

test("response tools make a round trip", async () => {
  const request = { model, tools: [{ type: "function", ...exchange, strict: false }] };
  for (const first of [
    await client.responses.create({ ...request, input: [dollars] }),
    await client.responses.stream({ ...request, input: [dollars] }).finalResponse(),
  ]) {
    const call = first.output.find((item) => item.type === "function_call");
    assert.equal(call.name, "exchange");
    assert.deepEqual(JSON.parse(call.arguments), yen);
    const result = { type: "function_call_output", call_id: call.call_id, output: '{"result": 43350}' };
    const second = await client.responses.create({
      ...request,
      input: [dollars, ...first.output, result],
    });
    assert.equal(second.status, "completed");
    assert.ok(second.output_text);
  }
});

test("errors are of their class", async () => {
  await assert.rejects(client.responses.create({ model, input: "x", background: true }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "background");
    assert.equal(error.code, "unsupported_value");
    return true;
  });
  await assert.rejects(
    client.chat.completions.create({ model: "gpt-9", messages: [question] }),
    (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
  );
  await assert.rejects(client.responses.retrieve("resp_1"), OpenAI.NotFoundError);
});

test("a stream can be left early", async () => {
  const stream = await client.responses.create({ model, input: [question], stream: true });
  for await (const event of stream) {
    if (event.type === "response.reasoning_text.delta") break;
  }
  assert.equal((await client.responses.create({ model, input: [question] })).output_text, "4 + 1 = 5");
});

test("models are listed", async () => {
  const list = await client.models.list();
  assert.equal(list.data[0].id, "demo");
});
