// The official JavaScript clients against the service: `openai` and the Agents SDK. Started by `scripts/clients`.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  Agent,
  OpenAIConversationsSession,
  OpenAIResponsesModel,
  run,
  setTracingDisabled,
  tool,
} from "@openai/agents";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.PRECIS_BASE_URL, apiKey: "any" });
setTracingDisabled(true);

const say = (role, text) => ({ type: "message", role, content: text });
const collect = async (page) => {
  const found = [];
  for await (const item of page) found.push(item);
  return found;
};

test("create, retrieve, update, delete", async () => {
  const made = await client.conversations.create({ items: [say("user", "hi")], metadata: { topic: "garden" } });
  assert.equal(made.object, "conversation");
  assert.deepEqual(await client.conversations.retrieve(made.id), made);
  const changed = await client.conversations.update(made.id, { metadata: { a: "b" } });
  assert.deepEqual(changed.metadata, { a: "b" });
  const gone = await client.conversations.delete(made.id);
  assert.deepEqual({ ...gone }, { id: made.id, object: "conversation.deleted", deleted: true });
  await assert.rejects(client.conversations.retrieve(made.id), OpenAI.NotFoundError);
});

test("pages of 250 items in both orders", async () => {
  const { id } = await client.conversations.create();
  const items = Array.from({ length: 253 }, (_, n) => say("user", String(n)));
  const made = await client.conversations.items.create(id, { items, include: ["reasoning.encrypted_content"] });
  const ids = made.data.map((item) => item.id);
  const asc = await collect(client.conversations.items.list(id, { order: "asc", limit: 100 }));
  assert.deepEqual(asc.map((item) => item.id), ids);
  const desc = await collect(client.conversations.items.list(id));
  assert.deepEqual(desc.map((item) => item.id), ids.toReversed());
});

test("retrieve and delete an item", async () => {
  const { id } = await client.conversations.create();
  const made = await client.conversations.items.create(id, { items: [say("user", "a"), say("assistant", "b")] });
  for (const item of made.data) {
    const read = await client.conversations.items.retrieve(item.id, { conversation_id: id });
    assert.deepEqual(read, item);
  }
  await client.conversations.items.delete(made.data[0].id, { conversation_id: id });
  const left = await collect(client.conversations.items.list(id));
  assert.deepEqual(left.map((item) => item.id), [made.data[1].id]);
});

test("errors", async () => {
  const { id } = await client.conversations.create();
  const orphan = { type: "function_call_output", call_id: "none", output: "o" };
  await assert.rejects(client.conversations.items.create(id, { items: [orphan] }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "items[0].call_id");
    return true;
  });
  await assert.rejects(client.conversations.items.list(id, { limit: 101 }), OpenAI.BadRequestError);
});

test("compact", async () => {
  const text = "src/lib.rs was changed so that parse() takes a slice. ".repeat(10);
  const input = [say("user", "Change src/lib.rs"), say("assistant", text)];
  const made = await client.responses.compact({ model: "gpt-5", input });
  assert.deepEqual(made.output.map((item) => item.type), ["message", "message"]);
  assert.ok(made.output[1].content[0].text.includes("src/lib.rs"));
  assert.ok(made.usage.total_tokens > 0);
});

test("a lost answer does not double an append", async () => {
  const lossy = new OpenAI({ baseURL: process.env.LOSSY_BASE_URL, apiKey: "any" });
  const made = await lossy.conversations.create({ items: [say("user", "one")], metadata: { name: "lossy js" } });
  await lossy.conversations.items.create(made.id, { items: [say("user", "two")] });
  const read = await collect(client.conversations.items.list(made.id, { order: "asc" }));
  assert.deepEqual(read.map((item) => item.content[0].text), ["one", "two"]);
});

test("an agent's run with tools, pop and clear", async () => {
  const look = tool({
    name: "look",
    description: "Looks at a place.",
    parameters: {
      type: "object",
      properties: { place: { type: "string" } },
      required: ["place"],
      additionalProperties: false,
    },
    execute: async ({ place }) => `ferns in the ${place}`,
  });
  const modelClient = new OpenAI({ baseURL: process.env.MODEL_BASE_URL, apiKey: "any" });
  const model = new OpenAIResponsesModel(modelClient, "gpt-5");
  const agent = new Agent({ name: "gardener", instructions: "Look first.", model, tools: [look] });
  const session = new OpenAIConversationsSession({ client });
  const first = await run(agent, "What grows in shade?", { session });
  assert.equal(first.finalOutput, "saw 6 items");
  const before = await session.getItems();
  assert.equal(before.length, 7);
  const second = await run(agent, "And in the sun?", { session });
  assert.equal(second.finalOutput, "saw 13 items");
  assert.equal((await session.getItems()).length, 14);
  for (let popped = 0; popped < 7; popped += 1) await session.popItem();
  assert.deepEqual(await session.getItems(), before);
  const id = await session.getSessionId();
  await session.clearSession();
  assert.deepEqual(await session.getItems(), []);
  await assert.rejects(client.conversations.retrieve(id), OpenAI.NotFoundError);
});
