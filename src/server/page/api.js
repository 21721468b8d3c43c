// Talking to the server this page came from, and to no other.

// Why a request failed: the server's message, its code, and what HTTP said (0: no answer at all).
export class ApiError extends Error {
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function headers(key) {
  const all = { "Content-Type": "application/json" };
  if (key) all.Authorization = `Bearer ${key}`;
  return all;
}

async function request(path, options) {
  try {
    return await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", 0, "unreachable");
  }
}

function errorOf(body, status) {
  const error = body?.error;
  const message = typeof error?.message === "string" ? error.message : `The server answered with status ${status}.`;
  return new ApiError(message, status, typeof error?.code === "string" ? error.code : "");
}

async function failure(response) {
  let body = null;
  try {
    body = await response.json();
  } catch {
    // Not ours: a proxy's page, say. The status has to do.
  }
  return errorOf(body, response.status);
}

// "ok", "loading", "draining" or "unreachable"
export async function serverStatus() {
  try {
    const response = await request("health", {});
    if (response.ok) return "ok";
    const body = await response.json();
    return body?.status === "draining" ? "draining" : "loading";
  } catch {
    return "unreachable";
  }
}

// [{id, context}] of the names that are served.
export async function listModels(key) {
  const response = await request("v1/models", { headers: headers(key) });
  if (!response.ok) throw await failure(response);
  const body = await response.json();
  const models = Array.isArray(body?.data) ? body.data : [];
  return models.map((model) => ({ id: String(model.id), context: Number(model.max_model_len) || 0 }));
}

// The values of the `data:` lines of a stream of server-sent events, as they arrive.
async function* eventData(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  }
}

// The chunks of a streamed chat completion. Throws an ApiError for every failure, also for one in the middle.
export async function* streamChat(body, key, signal) {
  const options = { method: "POST", headers: headers(key), body: JSON.stringify(body), signal };
  const response = await request("v1/chat/completions", options);
  if (!response.ok) throw await failure(response);
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw errorOf(chunk, response.status);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError("The connection broke in the middle of the answer.", 0, "unreachable");
  }
  throw new ApiError("The server ended the answer in the middle.", 0, "incomplete");
}
