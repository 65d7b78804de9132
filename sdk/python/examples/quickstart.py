"""Two calls of one model message, run side by side. Needs `forerun up` in another terminal."""

import asyncio

from forerun.client import AsyncClient, Call


async def main() -> None:
    """A step of an agent whose tool is a function of this program."""
    client = AsyncClient()

    @client.tool
    def weather(city: str) -> dict[str, object]:
        return {"city": city, "degrees": 20 + len(city)}

    async with client, client.session("quickstart") as session:
        await session.user_turn("Is it warmer in Oslo or in Rome?")
        await session.model_started()
        for result in await session.call_tools([Call("weather", {"city": "Oslo"}), Call("weather", {"city": "Rome"})]):
            print(result.json(), result.served)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
