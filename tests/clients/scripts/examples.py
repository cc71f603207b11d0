"""Types and tools of the scripts that ask for structured output and calls.

A small model may go on with a free string or list for ever, so that all of these are bounded.
"""

# without `from __future__ import annotations`: llama-index does not resolve those of a function of another module
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from steps import expect

ASK = "What will the weather be in Rome for the next 3 days?"
LENGTH = 200  # more tokens than any of these documents and calls needs

City = Literal["Paris", "Rome", "Oslo"]
Sky = Literal["clear", "clouds"]
Days = Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]  # llama-index drops bounds


class Closed(BaseModel):
    """Without `additionalProperties: false` a model may add properties for ever."""

    model_config = ConfigDict(extra="forbid")


class Place(Closed):
    city: City
    country: str = Field(pattern="^[A-Z]{2}$")


class Report(Closed):
    """The weather at a place."""

    place: Place
    sky: Sky
    celsius: int = Field(ge=-50, le=50)
    warnings: list[Literal["ice", "storm"]] = Field(max_length=2)
    remark: Annotated[str, Field(max_length=12)] | None


class Weather(Closed):
    """Look up the weather of a city."""

    city: City
    days: Days


PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
    "required": ["zone"],
    "additionalProperties": False,
}


def function(name: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A tool as chat completions take it."""
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters, **more}}


TOOLS: list[Any] = [function("get_weather", PARAMETERS), function("get_time", CLOCK_PARAMETERS)]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


def weather(city: City, days: Days) -> str:
    """The weather of a city.

    Args:
        city: which city
        days: how many days
    """
    Weather(city=city, days=days)
    return f"{days} days of rain in {city}"


def check_call(name: str, arguments: str | dict[str, Any]) -> None:
    """Raises unless it is a valid call of one of the tools."""
    values = json.loads(arguments) if isinstance(arguments, str) else arguments
    if name == "get_time":
        expect(values in ({"zone": "UTC"}, {"zone": "CET"}), values)
    else:
        expect(name in ("get_weather", "weather", "Weather"), name)
        Weather.model_validate(values)
        expect(set(values) == {"city", "days"}, values)
