"""Sends messages to the support agent, in a session that any process can continue.

python converse.py --session s-1 "Where is order A17?"
"""

import argparse
import asyncio

from agent import root_agent
from google.adk.runners import Runner
from google.genai import types

from runfold import UnavailableError
from runfold.adk import RunfoldSessionService

APP, USER = "support", "ann"


async def converse(url: str, session_id: str, texts: list[str]) -> None:
    service = RunfoldSessionService(url)
    runner = Runner(app_name=APP, agent=root_agent, session_service=service, auto_create_session=True)
    try:
        for text in texts:
            print(f"you    {text}")
            async for event in runner.run_async(
                user_id=USER, session_id=session_id, new_message=types.UserContent(text)
            ):
                for part in (event.content and event.content.parts) or []:
                    if part.text:
                        print(f"agent  {part.text}")
    finally:
        await runner.close()
        await service.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the address of Runfold's API")
    parser.add_argument(
        "--session", required=True, help="the id of the session, which is created if it does not exist"
    )
    parser.add_argument(
        "texts", nargs="+", metavar="TEXT", help="a message of the customer, one for each turn"
    )
    arguments = parser.parse_args()
    try:
        asyncio.run(converse(arguments.url, arguments.session, arguments.texts))
    except UnavailableError as error:
        raise SystemExit(f"{error}; is `runfold dev` running?") from error


if __name__ == "__main__":
    main()
