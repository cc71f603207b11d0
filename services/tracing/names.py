"""The names of spans and of their attributes: vLLM's where the meaning is the same, else with the prefix `orca.`."""

# --- spans ---
REQUEST = "llm_request"  # a gateway: from the arrival of an HTTP request to the end of its answer
RESUMED = "llm_request resumed"  # a gateway: a client that follows a request made earlier; linked to its trace
VALIDATE = "validate"  # a gateway: reading, parsing, template, tokenization, checks
SUBMIT = "submit"  # a gateway: the call of the pool
QUEUE = "queue"  # the pool: from the arrival, or the end of the tenure before, to the claim
TENURE = "tenure"  # a scheduler: from the claim to the end, or until the request leaves the seat
ENGINE = "engine"  # a scheduler: from the start of the first iteration with the request to the end of the last one
PREFILL = "prefill"  # a part of `engine`: to the first new token
DECODE = "decode"  # a part of `engine`: from there on

# --- events ---
FIRST_TOKEN = "first_token"
PREEMPTED = "preempted"  # the request lost its KV blocks
RECOMPUTED = "recomputed"  # it runs again, from its first token that is in no cache

# --- attributes that vLLM has ---
REQUEST_ID = "gen_ai.request.id"
REQUEST_N = "gen_ai.request.n"
MAX_TOKENS = "gen_ai.request.max_tokens"
MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
PROMPT_TOKENS = "gen_ai.usage.prompt_tokens"
COMPLETION_TOKENS = "gen_ai.usage.completion_tokens"
NUM_SEQUENCES = "gen_ai.usage.num_sequences"
TIME_IN_QUEUE = "gen_ai.latency.time_in_queue"
TIME_TO_FIRST_TOKEN = "gen_ai.latency.time_to_first_token"
E2E = "gen_ai.latency.e2e"
TIME_IN_MODEL_PREFILL = "gen_ai.latency.time_in_model_prefill"
TIME_IN_MODEL_DECODE = "gen_ai.latency.time_in_model_decode"
TIME_IN_MODEL_INFERENCE = "gen_ai.latency.time_in_model_inference"

# --- further attributes ---
TENANT = "orca.tenant"
GATEWAY = "orca.gateway"
CLASS = "orca.class"
SEQUENCE = "orca.sequence"  # the id of one choice, `<request>/<choice>`
SEAT = "orca.seat"
EPOCH = "orca.epoch"
ENDED_BY = "orca.ended_by"  # of a tenure: finished, released, taken, engine_lost, scheduler_fault
RESUMED_TOKENS = "orca.resumed_tokens"  # output tokens that earlier tenures committed
CACHED_TOKENS = "orca.cached_tokens"
ITERATIONS = "orca.iterations"
ITERATION_SECONDS = "orca.iteration_seconds"  # the sum over the iterations, as the scheduler saw them
ENGINE_SECONDS = "orca.engine_seconds"  # the sum inside the engine
CHUNKS = "orca.prompt_chunks"  # iterations of the prefill
