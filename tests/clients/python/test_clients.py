"""The official Python clients against the service: `openai` and the Agents SDK. Started by `scripts/clients`."""

import os
import unittest

import openai
from agents import Agent, ModelSettings, OpenAIConversationsSession, OpenAIResponsesModel, Runner, function_tool
from agents import set_tracing_disabled
from agents.memory import OpenAIResponsesCompactionSession, SQLiteSession

BASE = os.environ["PRECIS_BASE_URL"]
MODEL = os.environ["MODEL_BASE_URL"]
LOSSY = os.environ["LOSSY_BASE_URL"]

set_tracing_disabled(True)


def say(role, text):
    return {"type": "message", "role": role, "content": text}


@function_tool
def look(place: str) -> str:
    """Looks at a place."""
    return f"ferns in the {place}"


class Conversations(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=BASE, api_key="any")
        self.addCleanup(self.client.close)
        self.items = self.client.conversations.items

    def conversation(self, **members):
        return self.client.conversations.create(**members).id

    def test_create_retrieve_update_delete(self):
        made = self.client.conversations.create(items=[say("user", "hi")], metadata={"topic": "garden"})
        self.assertEqual(made.object, "conversation")
        self.assertEqual(made.metadata, {"topic": "garden"})
        self.assertEqual(self.client.conversations.retrieve(made.id), made)
        self.assertEqual(self.client.conversations.update(made.id, metadata={"a": "b"}).metadata, {"a": "b"})
        gone = self.client.conversations.delete(made.id)
        self.assertEqual((gone.id, gone.object, gone.deleted), (made.id, "conversation.deleted", True))
        with self.assertRaises(openai.NotFoundError):
            self.client.conversations.retrieve(made.id)

    def test_pages_of_250_items_in_both_orders(self):
        id = self.conversation()
        made = self.items.create(id, items=[say("user", str(n)) for n in range(253)], include=["reasoning.encrypted_content"])
        ids = [item.id for item in made.data]
        self.assertEqual(len(ids), 253)
        self.assertEqual([item.id for item in self.items.list(id, order="asc", limit=100)], ids)
        self.assertEqual([item.id for item in self.items.list(id)], ids[::-1])
        first = self.items.list(id)
        self.assertEqual((len(first.data), first.has_more), (20, True))
        self.assertEqual([item.content[0].text for item in self.items.list(id, order="asc", after=ids[249])], ["250", "251", "252"])

    def test_items_retrieve_and_delete(self):
        id = self.conversation()
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": "o"}
        made = self.items.create(id, items=[say("user", "q"), call, output, say("assistant", "done")])
        self.assertEqual([item.type for item in made.data], ["message", "function_call", "function_call_output", "message"])
        for item in made.data:
            self.assertEqual(self.items.retrieve(item.id, conversation_id=id), item)
        left = self.items.delete(made.data[3].id, conversation_id=id)
        self.assertEqual((left.id, left.object), (id, "conversation"))
        self.items.delete(made.data[0].id, conversation_id=id)
        self.assertEqual([item.type for item in self.items.list(id, order="asc")], ["function_call", "function_call_output"])
        with self.assertRaises(openai.NotFoundError):
            self.items.retrieve(made.data[0].id, conversation_id=id)

    def test_errors(self):
        id = self.conversation()
        orphan = {"type": "function_call_output", "call_id": "none", "output": "o"}
        with self.assertRaises(openai.BadRequestError) as raised:
            self.items.create(id, items=[say("user", "q"), orphan])
        self.assertEqual(raised.exception.param, "items[1].call_id")
        self.assertEqual(raised.exception.type, "invalid_request_error")
        self.assertEqual(list(self.items.list(id)), [])
        with self.assertRaises(openai.BadRequestError) as raised:
            self.items.list(id, limit=101)
        self.assertEqual(raised.exception.param, "limit")
        with self.assertRaises(openai.NotFoundError):
            self.client.get("/nothing", cast_to=object)
        self.items.create(id, items=[{"type": "reasoning", "id": "rs_1", "summary": []}])
        with self.assertRaises(openai.ConflictError) as raised:
            self.items.create(id, items=[{"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed"}])
        retries = raised.exception.response.request.headers["x-stainless-retry-count"]
        self.assertEqual(retries, "0", "a conflict is not tried again")

    def test_compact(self):
        text = "src/lib.rs was changed so that parse() takes a slice. " * 10
        items = [say("user", "Change src/lib.rs"), say("assistant", text)]
        made = self.client.responses.compact(model="gpt-5", input=items)
        self.assertEqual(made.object, "response.compaction")
        self.assertEqual([item.type for item in made.output], ["message", "message"])
        self.assertEqual(made.output[0].content[0].text, "Change src/lib.rs")
        self.assertIn("src/lib.rs", made.output[1].content[0].text)
        self.assertGreater(made.usage.total_tokens, 0)
        sealed = self.client.responses.compact(model="gpt-5", input=items, extra_body={"compaction_format": "item"})
        self.assertEqual(sealed.output[-1].type, "compaction")
        id = self.conversation(items=items)
        stored = self.client.responses.compact(model="gpt-5", extra_body={"conversation": id})
        self.assertEqual(stored.output[0].content[0].text, "Change src/lib.rs")

    def test_a_lost_answer_does_not_double_an_append(self):
        with openai.OpenAI(base_url=LOSSY, api_key="any") as client:
            made = client.conversations.create(items=[say("user", "first")], metadata={"name": "lossy"})
            client.conversations.items.create(made.id, items=[say("user", "second")])
        texts = [item.content[0].text for item in self.items.list(made.id, order="asc")]
        self.assertEqual(texts, ["first", "second"])


class AgentsSdk(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.client = openai.AsyncOpenAI(base_url=BASE, api_key="any")
        self.addAsyncCleanup(self.client.close)
        model_client = openai.AsyncOpenAI(base_url=MODEL, api_key="any")
        self.addAsyncCleanup(model_client.close)
        model = OpenAIResponsesModel(model="gpt-5", openai_client=model_client)
        self.agent = Agent(name="gardener", instructions="Look first.", model=model, tools=[look], model_settings=ModelSettings())

    async def test_a_run_with_tools_pop_and_clear(self):
        session = OpenAIConversationsSession(openai_client=self.client)
        first = await Runner.run(self.agent, "What grows in shade?", session=session)
        self.assertEqual(first.final_output, "saw 6 items")
        items = await session.get_items()
        kinds = [item["type"] for item in items]
        self.assertEqual(
            kinds,
            ["message", "reasoning", "function_call", "function_call", "function_call_output", "function_call_output", "message"],
        )
        second = await Runner.run(self.agent, "And in the sun?", session=session)
        self.assertEqual(second.final_output, "saw 13 items")
        self.assertEqual(len(await session.get_items()), 14)
        self.assertEqual([item["type"] for item in await session.get_items(limit=2)], ["function_call_output", "message"])
        context = await self.context(session.session_id)
        roles = [message["role"] for message in context["messages"]]
        self.assertEqual(roles, ["user", "assistant", "tool", "tool", "assistant"] * 2)
        self.assertEqual(context["messages"][1]["reasoning_content"], "look twice")
        for kind in kinds[::-1]:
            self.assertEqual((await session.pop_item())["type"], kind)
        self.assertEqual(await session.get_items(), items)
        again = await Runner.run(self.agent, "And in the sun?", session=session)
        self.assertEqual(again.final_output, "saw 13 items")
        old = session.session_id
        await session.clear_session()
        self.assertEqual(await session.get_items(), [])
        self.assertNotEqual(session.session_id, old)
        with self.assertRaises(openai.NotFoundError):
            await self.client.conversations.retrieve(old)

    async def context(self, conversation):
        root = BASE.removesuffix("/v1")
        reply = await self.client.get(f"{root}/sessions/{conversation}/context", cast_to=object)
        return reply

    async def test_a_compacting_session(self):
        session = OpenAIResponsesCompactionSession(
            session_id="local",
            underlying_session=SQLiteSession("local"),
            client=self.client,
            model="gpt-5",
            compaction_mode="input",
            should_trigger_compaction=lambda _: False,
        )
        await Runner.run(self.agent, "What grows in shade?", session=session)
        await session.run_compaction({"force": True, "compaction_mode": "input"})
        items = await session.get_items()
        self.assertEqual([item["role"] for item in items], ["user", "user"])
        after = await Runner.run(self.agent, "And in the sun?", session=session)
        self.assertTrue(after.final_output.startswith("saw "))


if __name__ == "__main__":
    unittest.main()
