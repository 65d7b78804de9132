"""Two calls of one model message, side by side. Needs `forerun up` in another terminal."""

import asyncio

from forerun.client import AsyncClient, Call

client = AsyncClient()


@client.tool
def weather(city: str) -> dict[str, object]:
    """A tool of your own program. Tools behind HTTP, MCP servers and commands are named in the policy file instead."""
    return {"city": city, "degrees": 20 + len(city)}


async def main() -> None:
    async with client, client.session("quickstart") as session:
        await session.user_turn("Is it warmer in Oslo or in Rome?")
        await session.model_started()  # your model thinks here; Forerun runs ahead meanwhile
        for result in await session.call_tools([Call("weather", {"city": "Oslo"}), Call("weather", {"city": "Rome"})]):
            print(result.json(), result.served)


asyncio.run(main())
