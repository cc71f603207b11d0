"""The gateway: HTTP in, tokens out as JSON or server-sent events. It knows the pool, but no scheduler and no engine.

The way of a request, in the order in which to read it:

- `app`: the FastAPI app. `endpoints`: the registry of the routes that generate tokens; `endpoint`: what they share,
  from a body to its answer. `gateway`: the parts of a gateway process that all routes share.
- `http`: what every request passes (API key, host and origin, headers, body), and the OpenAPI document.
- `openai`, `responses`, `anthropic`: the endpoints of each API, its objects and its events. `files`, `batches`, `live`
  and `server_routes` (health, metrics, models, tokenizer): the other routes. `schemas`: the types of requests and
  answers.
- `validation` and `model`: a request becomes a submission, its texts become token ids. `grammars`: constraints and
  tools become the grammar of its output.
- `pool_client`: submitting a request and following its events.
- `answer`: tokens become deltas of text, log probabilities and output items. `streaming`: a response or a stream.

Imports point one way; the contract in pyproject.toml has the order.
"""
