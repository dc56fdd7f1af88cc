"""Use a server through openai's own package, as an application does: `python openai_client.py URL COUNT PER_S`. Prints
the mean TPOT in ms of streamed chats, COUNT of them at PER_S a second. Runs in the environment of the clients."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import openai

TOKENS = 64


async def main(url: str, count: int, per_s: float) -> None:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    (model,) = [each.id for each in (await client.models.list()).data]

    async def one(number: int) -> float:
        await asyncio.sleep(number / per_s)
        messages = [{"role": "user", "content": f"{number} " + "word " * 200}]
        options = {"stream_options": {"include_usage": True}, "extra_body": {"ignore_eos": True}}
        stream = await client.chat.completions.create(
            model=model, messages=messages, max_completion_tokens=TOKENS, stream=True, **options
        )
        times, usage, reason = [], None, None
        async for chunk in stream:
            usage = chunk.usage or usage
            if chunk.choices and chunk.choices[0].delta.content:
                times.append(time.perf_counter())
                reason = chunk.choices[0].finish_reason
        assert usage is not None
        assert (usage.completion_tokens, reason) == (TOKENS, "length")
        return (times[-1] - times[0]) / (TOKENS - 1)

    means = await asyncio.gather(*map(one, range(count)))
    whole = await client.completions.create(model=model, prompt="Once upon a time", max_tokens=5)
    assert whole.choices[0].text
    print(json.dumps({"mean_tpot_ms": 1e3 * sum(means) / count}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
