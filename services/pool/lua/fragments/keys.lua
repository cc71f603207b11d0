-- The keys of one pool. All start with the pool's prefix, `orca:{<name>}:`, and so share one hash tag.
--
--   meta            hash: stamp (us), tick (us, see time), rank (last one given in order of arrival), bytes (of all groups), ended
--                   (sequences), ended_bytes (groups), figures
--   counters        hash: name -> sum
--   seq:<id>        hash: state (waiting, running, ended), group, rank, prompt, prompt_len, tokens_max, sampling,
--                   seat while it runs, cancelled once it is to end, end (blob) once it has;
--                   strikes and struck_at (its tokens at the last one) once an engine died under it
--   tok:<id>        string: committed tokens, 4 bytes each, little-endian
--   lp:<id>         list: a blob of log probabilities for each token, where asked
--   group:<request> hash: ids (msgpack), open (sequences not ended), bytes, body, tenant, resumable and background
--                   (0 or 1), grace (us), key (field in idempotency), deleted once nobody is to see it,
--                   priority (class), ttft (us), arrival (us)
--   idempotency     hash: <tenant> NUL <key> -> request
--   waiting         zset: id -> rank: arrival in us, one apart but for what was put back; or a virtual due time
--   ended           zset: request -> time (us) at which its last sequence ended
--   abandoned       zset: request that nobody follows -> time (us) at which it is cancelled
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
local WAITING, ENDED, IDEMPOTENCY = P .. "waiting", P .. "ended", P .. "idempotency"
local ABANDONED, ORPHANS = P .. "abandoned", P .. "orphans"
local LEASES, SEATS, IDLE = P .. "leases", P .. "seats", P .. "idle"
local GATEWAYS = P .. "gateways"
