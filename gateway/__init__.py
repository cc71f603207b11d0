"""The gateway: HTTP in, tokens out as JSON or server-sent events. It knows the pool, but no scheduler and no engine.

The way of a request, in the order in which to read it:

- `app` and `gateway`: the FastAPI app and the parts of a gateway process.
- `http`: what every request passes (API key, host and origin, headers, body), and the OpenAPI document.
- `openai`, `responses`, `anthropic`, `files`, `batches`: the routes of each API, its objects and its events;
  `server_routes`: health, metrics, tokenizer. `schemas`: the types of requests and answers.
- `validation` and `model`: a request becomes a submission, its texts become token ids.
- `pool_client`: submitting a request and following its events.
- `answer`: tokens become deltas of text, log probabilities, and a response or a stream.
"""
