// Serves one small model at 127.0.0.1 in the form of OpenAI's chat completions. See README.md.
import http from "node:http";
import { basename } from "node:path";
import { parseArgs } from "node:util";
import { LlamaGrammarEvaluationState, getLlama } from "node-llama-cpp";

const BODY_BYTES = 4 << 20, WAITING = 16, STEP = 256;
const SYSTEM = { role: "system", content: "You are a helpful AI assistant named SmolLM, trained by Hugging Face" };
const fail = message => { console.error(`real-model: ${message}`); process.exit(1); };
process.on("uncaughtException", error => fail(error.message));
const { values: options } = parseArgs({ options: {
  port: { type: "string", default: "8081" }, context: { type: "string", default: "4096" }, weights: { type: "string" } } });
const number = (name, least, most) => {
  const value = Number(options[name]);
  if (Number.isInteger(value) && value >= least && value <= most) return value;
  return fail(`--${name} takes a whole number from ${least} to ${most}`);
};
const port = number("port", 0, 65535), contextSize = number("context", 256, 8192);

const llama = await getLlama({ gpu: false, build: "never", skipDownload: true, maxThreads: 1 });
const model = await llama.loadModel({ modelPath: options.weights });
const sequence = (await model.createContext({ contextSize, threads: 1 })).getSequence();
const name = basename(options.weights).split(".")[0];
const created = Math.floor(Date.now() / 1000);

class Refusal extends Error {
  constructor(status, message, type = "invalid_request_error", more = {}) {
    super(message);
    this.status = status;
    this.body = { error: { code: status, message, type, ...more } };
  }
}

// The model's own template (ChatML). What a message says is never read as a mark of the template.
function promptOf(messages) {
  if (!Array.isArray(messages) || messages.length === 0) throw new Refusal(400, "`messages` must be a list that is not empty");
  const [start, end] = ["<|im_start|>", "<|im_end|>"].map(mark => model.tokenize(mark, true));
  const frame = ({ role, content }) => [...start, ...model.tokenize(`${role}\n${content}`), ...end, ...model.tokenize("\n")];
  const tokens = messages.flatMap((message, index) => {
    const { role, content, tool_calls: calls } = message ?? {};
    const parts = typeof content === "string" ? [{ text: content }] : content ?? [];
    if (typeof role !== "string" || !Array.isArray(parts) || parts.some(part => typeof part?.text !== "string"))
      throw new Refusal(400, `messages[${index}] must have a role, and text as its content`);
    if (!Array.isArray(calls ?? [])) throw new Refusal(400, `messages[${index}].tool_calls must be a list`);
    // The template knows no tools: a call is shown as the text that it was written as, a result as the user's words.
    const texts = [...parts.map(part => part.text), ...(calls ?? []).map(call => JSON.stringify(call?.function ?? null))];
    return frame({ role: role === "tool" ? "user" : role, content: texts.join("\n") });
  });
  const system = messages[0].role === "system" ? [] : frame(SYSTEM);
  return [...system, ...tokens, ...start, ...model.tokenize("assistant\n")];
}

// The tools of which one has to be called; null if the model answers in words. Left to itself it never calls one.
function demanded({ tools = [], tool_choice: choice }) {
  const name = choice?.function?.name;
  if (choice !== "required" && name === undefined) return null;
  const wanted = Array.isArray(tools) ? tools.filter(tool => tool?.function && (!name || tool.function.name === name)) : [];
  if (wanted.length === 0) throw new Refusal(400, "`tool_choice` demands a tool that `tools` does not have");
  return wanted.map(tool => tool.function);
}

// A grammar that lets nothing through but a call of one of them.
async function grammarOf(functions) {
  const call = ({ name, parameters }) => ({ type: "object",
    properties: { name: { const: name }, arguments: parameters ?? { type: "object", properties: {} } } });
  try { return await llama.createGrammarForJsonSchema({ oneOf: functions.map(call) }); }
  catch { throw new Refusal(400, "the parameters of a tool are a schema that is not understood"); }
}

// A call in the form of the API; null if it broke off.
function toCall(text) {
  try {
    const { name, arguments: given } = JSON.parse(text);
    return { id: `call_${crypto.randomUUID().slice(0, 8)}`, type: "function", function: { name, arguments: JSON.stringify(given) } };
  } catch { return null; }
}

let waiting = 0, last = Promise.resolve();
function inTurn(work) {
  if (waiting >= WAITING) throw new Refusal(503, "too many requests are waiting", "unavailable_error");
  waiting += 1;
  return (last = last.then(work, work).finally(() => { waiting -= 1; }));
}

async function generate(prompt, { most, temperature, grammar }, gone, onText) {
  // What it begins with and the last request began with is not read again.
  await sequence.adaptStateToTokens(prompt.slice(0, -1), false);
  const tokens = [], cached = sequence.contextTokens.length;
  const rules = grammar && { grammarEvaluationState: new LlamaGrammarEvaluationState({ model, grammar }) };
  let finish = "length", sent = 0, read = cached;
  // In steps, so that a client that goes away is noticed while its prompt is read, too.
  for (; prompt.length - read > STEP; read += STEP) {
    await sequence.evaluateWithoutGeneratingNewTokens(prompt.slice(read, read + STEP));
    if (gone.aborted) return null;
  }
  for await (const token of sequence.evaluate(prompt.slice(read), { temperature, yieldEogToken: true, ...rules })) {
    if (gone.aborted) return null;
    if (model.isEogToken(token)) { finish = "stop"; break; }
    tokens.push(token);
    const text = onText && model.detokenize(tokens);
    // Half a character is held back until its other half is there.
    if (text && !text.endsWith("\uFFFD")) { onText(text.slice(sent)); sent = text.length; }
    // The grammar would allow white space without end.
    if (grammar && toCall(model.detokenize(tokens))) { finish = "stop"; break; }
    if (tokens.length >= most) break;
  }
  const text = model.detokenize(tokens);
  if (onText && sent < text.length) onText(text.slice(sent));
  const usage = { prompt_tokens: prompt.length, completion_tokens: tokens.length, total_tokens: prompt.length + tokens.length,
    prompt_tokens_details: { cached_tokens: cached } };
  return { text, finish, usage };
}

async function complete(body, response, gone) {
  const prompt = promptOf(body?.messages), size = prompt.length, functions = demanded(body);
  if (size >= contextSize)
    throw new Refusal(400, `request (${size} tokens) exceeds the available context size (${contextSize} tokens), try increasing it`,
      "exceed_context_size_error", { n_prompt_tokens: size, n_ctx: contextSize });
  const cap = body.max_completion_tokens ?? body.max_tokens ?? contextSize, temperature = body.temperature ?? 0;
  if (!Number.isInteger(cap) || cap < 1) throw new Refusal(400, "`max_tokens` must be a whole number from 1");
  if (!(temperature >= 0 && temperature <= 2)) throw new Refusal(400, "`temperature` must be a number from 0 to 2");
  const grammar = functions && await grammarOf(functions);
  const withUsage = body.stream && body.stream_options?.include_usage;
  const head = { id: `chatcmpl-${crypto.randomUUID()}`, created: Math.floor(Date.now() / 1000), model: name };
  const event = data => response.write(`data: ${data}\n\n`);
  const chunk = (choices, usage = null) =>
    event(JSON.stringify({ ...head, object: "chat.completion.chunk", choices, ...(withUsage && { usage }) }));
  const delta = (delta, finish_reason = null) => chunk([{ index: 0, delta, finish_reason }]);

  await inTurn(async () => {
    if (gone.aborted) return;
    if (body.stream) {
      response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
      delta({ role: "assistant", content: "" });
    }
    const most = Math.min(cap, contextSize - size);
    const onText = body.stream && !grammar && (content => delta({ content }));
    const answer = await generate(prompt, { most, temperature, grammar }, gone, onText);
    if (!answer) return;
    const { text, usage } = answer, call = grammar && toCall(text);
    const finish = call ? "tool_calls" : answer.finish;
    if (!body.stream) {
      const message = { role: "assistant", content: grammar ? null : text, ...(call && { tool_calls: [call] }) };
      return send(response, 200, { ...head, object: "chat.completion", choices: [{ index: 0, message, finish_reason: finish }], usage });
    }
    if (call) {
      const { name, arguments: given } = call.function;
      delta({ tool_calls: [{ index: 0, ...call, function: { name, arguments: "" } }] });
      delta({ tool_calls: [{ index: 0, function: { arguments: given } }] });
    }
    delta({}, finish);
    if (withUsage) chunk([], usage);
    event("[DONE]");
    response.end();
  });
}

async function read(request) {
  const pieces = [];
  let size = 0;
  for await (const piece of request) {
    size += piece.length;
    if (size > BODY_BYTES) throw new Refusal(413, `a request may have ${BODY_BYTES} bytes`);
    pieces.push(piece);
  }
  try { return JSON.parse(Buffer.concat(pieces)); } catch { throw new Refusal(400, "the request is not JSON"); }
}

function send(response, status, body) {
  response.writeHead(status, { "content-type": "application/json", ...(status === 413 && { connection: "close" }) });
  response.end(JSON.stringify(body));
}

const server = http.createServer(async (request, response) => {
  const leaving = new AbortController();
  response.on("close", () => leaving.abort());
  try {
    const route = `${request.method} ${request.url.split("?")[0]}`;
    if (route === "GET /v1/models")
      return send(response, 200, { object: "list", data: [{ id: name, object: "model", created, owned_by: "local" }] });
    if (route !== "POST /v1/chat/completions") throw new Refusal(404, `there is no ${route}`, "not_found_error");
    await complete(await read(request), response, leaving.signal);
  } catch (error) {
    if (leaving.signal.aborted) return;
    if (!(error instanceof Refusal)) console.error("real-model:", error);
    if (response.headersSent) return response.destroy();
    const { status, body } = error instanceof Refusal ? error : new Refusal(500, "the model failed", "server_error");
    send(response, status, body);
  }
});
server.listen(port, "127.0.0.1", () =>
  console.log(`${name} at http://127.0.0.1:${server.address().port}/v1, context of ${contextSize} tokens, one thread`));
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(0));
