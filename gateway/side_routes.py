"""Routes beside OpenAI's: health, metrics, version, tokenizing."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from gateway.body import parse
from gateway.door import chat_tokens, off_loop
from gateway.errors import ApiError, Kind
from gateway.gateway import of
from gateway.schemas.tokenize import DetokenizeRequest, TokenizeRequest
from services.telemetry import render
from services.version import program_version

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while this process answers and hears the pool's events, or tries to; 503 once that part of it has ended."""
    return Response(status_code=200 if of(request).alive else 503)


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 only while a scheduler holds a seat and says that its engine is attached and gets on; however busy."""
    overview = await of(request).pool.overview()
    if not any(seat.alive and seat.gauges.get("ready") == 1 for seat in overview.seats):
        raise ApiError(Kind.NO_ENGINE, "No engine is ready.")
    return Response()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """The pool's figures: every gateway gives the same."""
    gateway = of(request)
    page = render(await gateway.pool.overview(), gateway.model.name)
    return Response(page, media_type=CONTENT_TYPE_LATEST)


@router.get("/version")
async def version(request: Request) -> dict[str, object]:
    """`numerics` names what the tokens depend on besides the request."""
    gateway = of(request)
    figures = (await gateway.pool.overview()).figures
    return {
        "version": program_version(),
        "model": gateway.model.info.name,
        "revision": gateway.model.info.revision,
        "numerics": figures and figures.numerics,
    }


@router.post("/tokenize")
async def tokenize(request: Request) -> dict[str, object]:
    gateway = of(request)
    model = gateway.model
    fields = await parse(request, TokenizeRequest)
    gateway.door.check_model(fields.model)
    if fields.messages is not None:
        tokens = await chat_tokens(model, fields.messages, fields.add_generation_prompt)
    else:
        prompt = fields.prompt or ""
        tokens = await off_loop(len(prompt), model.tokenizer.encode, prompt, fields.add_special_tokens)
    names = [model.tokenizer.literal_bytes(t).decode(errors="replace") for t in tokens]
    return {
        "count": len(tokens),
        "max_model_len": model.info.max_model_len,
        "tokens": tokens,
        "token_strs": names if fields.return_token_strs else None,
    }


@router.post("/detokenize")
async def detokenize(request: Request) -> dict[str, object]:
    gateway = of(request)
    fields = await parse(request, DetokenizeRequest)
    gateway.door.check_model(fields.model)
    gateway.door.check_ids(fields.tokens, "tokens")
    return {"prompt": gateway.model.tokenizer.decode(fields.tokens, skip_special_tokens=False)}
