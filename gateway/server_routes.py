"""Routes about the server: health, load, metrics, version, models, tokenizer; most of them are vLLM's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from gateway.errors import POOL_AWAY, ApiError, Kind
from gateway.gateway import Gateway, gateway_of
from gateway.http.body import parse
from gateway.http.headers import Caller
from gateway.http.openapi import BODY_ERRORS, POOL_ERRORS, documented
from gateway.model import chat_tokens, text_tokens
from gateway.pool_client.shards import Shard, or_error
from gateway.schemas.adapters import LoadLoraAdapter, UnloadLoraAdapter
from gateway.schemas.answers import Load, Model, ModelDetails, ModelList, Version
from gateway.schemas.strict import Strict
from gateway.schemas.tokenize import Detokenized, DetokenizeRequest, TokenizeRequest, TokenizerInfo, Tokens
from services.errors import PoolUnavailable
from services.metrics import ModelPage, Wanted, render
from services.overview import Overview
from services.version import program_version

ADAPTER_ERRORS = (*BODY_ERRORS, *POOL_ERRORS, Kind.NO_SUCH_OBJECT, Kind.NOT_ENABLED, Kind.OPERATOR_ONLY)
HEALTH = documented(empty={503: "a part of this gateway has ended"})

router = APIRouter()


@router.get("/health", **HEALTH)
@router.get("/v1/health", **HEALTH)
@router.get("/ping", **HEALTH)
@router.post("/ping", **HEALTH)
async def health(request: Request) -> Response:
    """200 while this gateway reads the pool's events, or tries to; 503 if a part of it has ended."""
    return Response(status_code=200 if gateway_of(request).alive else 503)


@router.get("/load", **documented(gives=Load))
async def load(request: Request) -> Load:
    """The number of requests that this gateway is answering, including queued ones, in vLLM's format. `/metrics` has
    the number of the whole pool."""
    return {"server_load": gateway_of(request).requests}


@router.get("/ready", **documented(text=True, errors=(*POOL_ERRORS, Kind.NO_ENGINE)))
async def ready(request: Request) -> Response:
    """200 while a pool accepts requests and an engine is ready for them, even if it is busy, or sleeps and wakes up for
    them; as of the last second. The text says how deep engines sleep, and names the models and shards for which that is
    not so."""
    models = gateway_of(request).all
    unready = {gateway.model.name: _unready(gateway) for gateway in models}
    if all(len(unready[gateway.model.name]) == len(gateway.shards.all) for gateway in models):
        raise next(iter(unready[models[0].model.name].values()))
    lines = []
    for gateway in models:
        model = f"model {gateway.model.name}" * (len(models) > 1)
        several, errors = len(gateway.shards.all) > 1, unready[gateway.model.name]
        for shard in gateway.shards.all:
            error = errors.get(shard.number)
            if text := error.message if error else _sleeps(shard):
                where = ", ".join(filter(None, (model, f"shard {shard.number}" * several)))
                lines.append(": ".join(filter(None, (where, text))))
    return Response("\n".join(lines), media_type="text/plain")


def _sleeps(shard: Shard) -> str:
    """The state of the engine of this shard that has given back least; empty if it is awake."""
    level = shard.overview().level
    return level.name.lower() if level else ""


def _unready(gateway: Gateway) -> dict[int, ApiError]:
    """Why requests of each shard of a model would not be answered now, by the number of the shard."""
    if not gateway.adapters.announced:
        loading = ApiError(Kind.NO_ENGINE, "The adapters of the settings are being loaded.")
        return {shard.number: loading for shard in gateway.shards.all}
    return {shard.number: error for shard in gateway.shards.all if (error := _not_ready(shard))}


def _not_ready(shard: Shard) -> ApiError | None:
    """Why requests of this shard would not be answered now."""
    try:
        overview = shard.overview()
    except PoolUnavailable:
        return ApiError(Kind.POOL_UNAVAILABLE, POOL_AWAY)
    if overview.full:
        return ApiError(Kind.POOL_UNAVAILABLE, "The memory of the pool's server is full.")
    if overview.ready:
        return None
    failure = overview.failure
    return ApiError(Kind.NO_ENGINE, f"The model could not be loaded: {failure}" if failure else "No engine is ready.")


@router.post(
    "/v1/load_lora_adapter", **documented(takes=LoadLoraAdapter, text=True, errors=(*ADAPTER_ERRORS, Kind.FILES_FULL))
)
async def load_lora_adapter(request: Request) -> Response:
    """Loads a LoRA adapter from a folder below `lora_dir`; needs the operator's key. Its name is a model's name for all
    requests that are sent from now on, at all gateways. `load_inplace` replaces an adapter; requests that have the
    former one continue with it. `tenants`: who can name it, by default everybody; `model`: for which model it is."""
    process = gateway_of(request)
    fields = await parse(request, LoadLoraAdapter, process.limits)
    gateway, _ = await process.called(fields.model, Caller(request.state.tenant))
    await process.check_name(fields.lora_name, gateway)
    inplace, tenants = bool(fields.load_inplace), fields.tenants or ()
    await gateway.adapters.load(fields.lora_name, fields.lora_path, inplace, tenants)
    return PlainTextResponse(f"Success: LoRA adapter '{fields.lora_name}' added successfully.")


@router.post("/v1/unload_lora_adapter", **documented(takes=UnloadLoraAdapter, text=True, errors=ADAPTER_ERRORS))
async def unload_lora_adapter(request: Request) -> Response:
    """Unloads a LoRA adapter; needs the operator's key. Requests that have it continue, later ones do not find it."""
    process = gateway_of(request)
    fields = await parse(request, UnloadLoraAdapter, process.limits)
    having = [gateway for gateway in process.all if await gateway.adapters.has(fields.lora_name)]
    await (having or process.all)[0].adapters.unload(fields.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{fields.lora_name}' removed successfully.")


@router.get("/metrics", **documented(text=True, errors=POOL_ERRORS))
async def metrics(request: Request) -> Response:
    """The metrics of each pool, and of each gateway by its id: the same page at every gateway."""
    models = gateway_of(request).all
    found = await asyncio.gather(*(or_error(gateway.shards.latest_overviews()) for gateway in models))
    names = await asyncio.gather(*(or_error(gateway.adapters.by_digest()) for gateway in models))
    pages = [_page(*parts) for parts in zip(models, found, names, strict=True)]
    if errors := [one for one in found if isinstance(one, PoolUnavailable)][len(models) - 1 :]:
        raise errors[0]
    return Response(render(pages), media_type=CONTENT_TYPE_LATEST)


def _page(
    gateway: Gateway,
    found: dict[int, Overview | None] | PoolUnavailable,
    names: dict[str, list[str]] | PoolUnavailable | None,
) -> ModelPage:
    """What /metrics shows of a model whose pools gave these answers."""
    if isinstance(found, PoolUnavailable):
        found = {shard.number: None for shard in gateway.shards.all}
    settings = gateway.settings
    wanted = Wanted(settings.engines, settings.gateways, settings.max_pool_bytes)
    return ModelPage(gateway.model.name, found, wanted, None if isinstance(names, PoolUnavailable) else names)


@router.get("/version", **documented(gives=Version, errors=POOL_ERRORS))
async def version(request: Request) -> Version:
    """The version of the server, and its default model. `numerics` names what the tokens depend on besides the
    request."""
    gateway = gateway_of(request).first
    figures = gateway.shards.overview().figures
    return {
        "version": program_version(),
        "model": gateway.model.info.name,
        "revision": gateway.model.info.revision,
        "numerics": figures and figures.numerics,
    }


@router.get("/v1/models", **documented(gives=ModelList, errors=POOL_ERRORS))
async def models(request: Request) -> ModelList:
    """The served models, each under each of its names, the default one first, then the adapters that the key's tenant
    can name; the operator gets all, with their `tenants`. `has_more`, `first_id` and `last_id` are for Anthropic's
    clients."""
    gateways = gateway_of(request).all
    tenant = None if request.state.operator else request.state.tenant
    cards = [gateway.model_card(name) for gateway in gateways for name in gateway.model.names]
    for gateway in gateways:
        for one in await gateway.adapters.visible(tenant):
            told: ModelDetails = {"tenants": list(one.tenants)} if tenant is None else {}
            cards.append({**gateway.model_card(one.name, one), **told})
    return {"object": "list", "data": cards, "has_more": False, "first_id": cards[0]["id"], "last_id": cards[-1]["id"]}


@router.get("/v1/models/{name:path}", **documented(gives=Model, errors=(*POOL_ERRORS, Kind.MODEL_NOT_FOUND)))
async def model(request: Request, name: str) -> Model:
    """The model, if it is served, or the adapter, as the key's list of models has it."""
    if request.state.operator:
        cards = (await models(request))["data"]
        if found := next((card for card in cards if card["id"] == name and card["parent"]), None):
            return found
    gateway, caller = await gateway_of(request).called(name, Caller(request.state.tenant))
    return gateway.model_card(name, caller.adapter)


class LoadModel(Strict):
    model: str
    settings: dict[str, Any] | None = None


class UnloadModel(Strict):
    model: str


CHANGES = (*BODY_ERRORS, *POOL_ERRORS, Kind.MODEL_NOT_FOUND, Kind.OPERATOR_ONLY)


@router.post("/v1/load_model", **documented(takes=LoadModel, gives=Model, errors=CHANGES))
async def load_model(request: Request) -> Model:
    """Adds a model, with settings of its own as in an entry of the setting `models`. Its engines load it then: its
    `status` is `loading` meanwhile. For the operator's key only."""
    process = gateway_of(request)
    fields = await parse(request, LoadModel, process.limits)
    gateway = await process.load({"model": fields.model} | (fields.settings or {}))
    return gateway.model_card(gateway.model.name)


@router.post("/v1/unload_model", **documented(takes=UnloadModel, gives=Model, errors=CHANGES))
async def unload_model(request: Request) -> Model:
    """Removes a model. It takes no new requests from now on, and goes when those that it has have ended. For the
    operator's key only."""
    process = gateway_of(request)
    fields = await parse(request, UnloadModel, process.limits)
    return await process.unload(fields.model)


@router.post("/tokenize", **documented(takes=TokenizeRequest, gives=Tokens, errors=(*BODY_ERRORS, Kind.CONTEXT_LENGTH)))
async def tokenize(request: Request) -> Response:
    """The tokens of a text, or of the prompt made of messages. Exceeding the context length is an error."""
    process = gateway_of(request)
    fields = await parse(request, TokenizeRequest, process.limits)
    gateway, _ = await process.called(fields.model, Caller(request.state.tenant))
    return await _off_loop(request, partial(_tokens, gateway, fields))


@router.post("/detokenize", **documented(takes=DetokenizeRequest, gives=Detokenized, errors=BODY_ERRORS))
async def detokenize(request: Request) -> Response:
    """The text of tokens, with special tokens spelled out."""
    process = gateway_of(request)
    fields = await parse(request, DetokenizeRequest, process.limits)
    gateway, _ = await process.called(fields.model, Caller(request.state.tenant))
    return await _off_loop(request, partial(_text, gateway, fields))


async def _off_loop(request: Request, work: Callable[[], Tokens | Detokenized]) -> Response:
    """The JSON of the result of `work`, which may be long."""
    body = await gateway_of(request).executor.run(
        request.state.tenant, request.state.size, lambda: orjson.dumps(work())
    )
    return Response(body, media_type="application/json")


def _tokens(gateway: Gateway, fields: TokenizeRequest) -> Tokens:
    model = gateway.model
    if fields.messages is not None:
        tokens = chat_tokens(
            model,
            fields.messages,
            gateway.validator.reading.own_marks,
            fields.add_generation_prompt,
            continue_final_message=bool(fields.continue_final_message),
            add_special_tokens=bool(fields.add_special_tokens),
            tools=fields.tool_use.for_template(),
            kwargs=fields.chat_template_kwargs,
            allow_control_tokens=fields.allow_control_tokens,
        )
    else:
        (tokens,) = text_tokens(model, [fields.prompt or ""], fields.add_special_tokens is not False, "prompt")
    return {
        "count": len(tokens),
        "max_model_len": model.info.max_model_len,
        "tokens": tokens,
        "token_strs": model.tokenizer.spelled(tokens) if fields.return_token_strs else None,
    }


def _text(gateway: Gateway, fields: DetokenizeRequest) -> Detokenized:
    gateway.validator.check_ids(fields.tokens, "tokens")
    return {"prompt": gateway.model.tokenizer.decode(fields.tokens, skip_special_tokens=False)}


@router.get("/tokenizer_info", **documented(gives=TokenizerInfo))
async def tokenizer_info(request: Request) -> dict[str, object]:
    """The contents of the tokenizer_config.json of the model that the query names, by default the first, without paths,
    in vLLM's format."""
    gateway, _ = await gateway_of(request).called(request.query_params.get("model"), Caller(request.state.tenant))
    model = gateway.model
    tokenizer, config = model.tokenizer, model.tokenizer.config
    special = tokenizer.spelled(sorted(tokenizer.special_ids))
    return {
        "tokenizer_class": config.tokenizer_class,
        **config.named_tokens,
        "additional_special_tokens": [token for token in special if token not in config.named_tokens.values()],
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": model.info.max_model_len,
        "chat_template": config.chat_template,
    }
