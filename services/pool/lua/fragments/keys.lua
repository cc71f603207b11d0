-- The keys of one pool. All start with the pool's prefix, `orca:{<name>}:`, and so share one hash tag.
--
--   meta            hash: stamp (us), tick and resumed (us, see time), rank (last one given in order of arrival), figures, counts
--                   (of all tenants), served and lines (see turns: the largest counter with which a tenant had a turn)
--   tenant:<name>   hash: counts (msgpack, see counts), while anything of the tenant is there
--   holders         set: tenants of which anything is there
--   counters        hash: name -> sum
--   seq:<id>        hash: state (waiting, running, ended), group, rank, prompt_len, tokens_max, asked (msgpack [number of
--                   its prompt in the group, of its sampling, choice, bytes of one output token, those of the prompt's
--                   log probabilities]), seat while it runs, cancelled once it is to end, end (blob) once it has;
--                   strikes, soft (of them, for an owner's death) and struck_at (its tokens at the last one) once
--                   an engine or the seat's owner died under it;
--                   payer (<counter>:<tenant>) once a seat took it and its prompt was charged;
--                   class where not by arrival alone: lines, of a batch, or <class> <ageing (us)> <arrival (us)>
--   tok:<id>        string: committed tokens, 4 bytes each, little-endian
--   lp:<id>         list: a blob of log probabilities for each token, where asked
--   group:<request> hash: ids (msgpack), open (sequences not ended), bytes, inputs (msgpack [bytes of its prompts and
--                   samplings, how many prompts, how many samplings]), prompt1, sampling1, ... until its end, body,
--                   tenant, stream (1 if a client waits for it), resumable and background
--                   (0 or 1), grace (us), key (field in idempotency), deleted once nobody is to see it,
--                   priority (class), ttft (us), arrival (us)
--   idempotency     hash: <tenant> NUL <key> -> request
--   waiting:<tenant> zset: id -> rank: arrival in us, one apart but for what was put back; or a virtual due time
--   turns           zset: the turn of each tenant of which anything waits -> class in which it is, half less where its first
--                   sequence was put back. A turn is counter (16 digits), rank (16 digits) of that sequence, tenant
--   turn:<tenant>   hash: served and lines (tokens charged, those of lines of batches apart), last (us, its last turn);
--                   while anything waits turn and counter (the one it goes by). Expires by itself while nothing does
--   ended           zset: request -> time (us) at which its last sequence ended
--   ended:<tenant>  zset: the same for each tenant
--   abandoned       zset: request that nobody follows -> time (us) at which it is cancelled
--   deadlines       zset: request of which nothing has begun -> time (us) at which it ends
--   orphans         set: ids, perhaps ended, whose followers' gateways have died
--   leases          zset: seat -> time (us) its lease runs out; only owned seats
--   seats           zset: seat -> time (us) to forget it; +inf while it is owned
--   seat:<seat>     hash: epoch, owner, lease (us), call, said (msgpack, see exchange), slots (tokens
--                   that fit into its engine); gauges, summary, figures (blobs); released, dead: the last epoch that
--                   its owner gave back, or that ended since its owner was said to be dead
--   running:<seat>  set: ids; cancelled:<seat> set: those of them to end
--   idle            set: seats that wait for their bell; bell:<seat> list: an item is a ring
--   gateways        zset: gateway -> time (us) its registration runs out
--   gateway:<name>  hash: events (number of the last one), fresh, call, known (reply to that call)
--   events:<name>   stream: what the gateway listens to
--   hold:<name>     hash: holder, epoch; expires by itself
--   listening:<name> set: ids of the sequences, not ended, that the gateway listens to
local P = KEYS[1]
local META, COUNTERS = P .. "meta", P .. "counters"
local TURNS, ENDED, IDEMPOTENCY = P .. "turns", P .. "ended", P .. "idempotency"
local HOLDERS = P .. "holders"
local ABANDONED, ORPHANS, DEADLINES = P .. "abandoned", P .. "orphans", P .. "deadlines"
local LEASES, SEATS, IDLE = P .. "leases", P .. "seats", P .. "idle"
local GATEWAYS = P .. "gateways"
