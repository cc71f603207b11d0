-- include: keys counts expire
-- Ended groups make place for new ones. Those of the tenant that asks go first, if it has more than its share: the
-- bound, divided by the tenants that have anything in the pool. Then go those of others, of whoever is furthest above its
-- share. What a tenant keeps within its share is dropped for its own requests alone.

-- All tenants that have anything in the pool, with `tenant` among them.
local function holders(tenant)
  local names, found = redis.call("SMEMBERS", HOLDERS), false
  for _, name in ipairs(names) do
    found = found or name == tenant
  end
  if not found then
    names[#names + 1] = tenant
  end
  return names
end

-- Whose oldest ended group is to go for `more` of the tenant's, counted as `name` says; false if there is none.
local function victim(names, tenant, name, more, limit)
  local share, most, found = limit / #names, 0, false
  local own = book_of(tenant)
  if own.stored > 0 and own[name] + more > share then
    return tenant
  end
  for _, other in ipairs(names) do
    local counts = book_of(other)
    local has = counts[name]
    if other ~= tenant and counts.stored > 0 and has > share and (has > most or has == most and other < found) then
      most, found = has, other
    end
  end
  return found or own.stored > 0 and tenant
end

-- Bytes that could be freed for the tenant, about: others keep their share.
local function freeable(names, tenant, limit)
  local share, sum = limit / #names, book_of(tenant).ended_bytes
  for _, other in ipairs(names) do
    if other ~= tenant then
      local counts = book_of(other)
      sum = sum + math.max(0, math.min(counts.ended_bytes, counts.bytes - share))
    end
  end
  return sum
end

-- Forgets the oldest ended group of this tenant.
local function drop_oldest(tenant)
  drop(redis.call("ZRANGE", P .. "ended:" .. tenant, 0, 0)[1])
end

-- Keeps the number of ended groups within the bounds, 0 being none, with place for one that has yet to end.
local function keep_few(tenant, all_most, own_most)
  local own, all = book_of(tenant), book(META)
  while own_most > 0 and own.stored >= own_most and dropped < DROPPED_MOST do
    drop_oldest(tenant)
  end
  if all_most > 0 and all.stored >= all_most then
    local names = holders(tenant)
    while all.stored >= all_most and dropped < DROPPED_MOST do
      local whose = victim(names, tenant, "stored", 1, all_most)
      if not whose then
        break
      end
      drop_oldest(whose)
    end
  end
end

-- Whether `more` bytes of the tenant find place under both bounds, 0 being none for the own one, once what may be dropped
-- is dropped.
local function has_place(names, tenant, more, all_most, own_most)
  local own, all = book_of(tenant), book(META)
  return (own_most == 0 or own.bytes - own.ended_bytes + more <= own_most)
    and (all.bytes + more <= all_most or all.bytes + more - freeable(names, tenant, all_most) <= all_most)
end

-- Makes place for `more` bytes. Returns false if there can be none, having dropped nothing; or if more is to be dropped
-- than one script may, having dropped that much.
local function make_place(tenant, more, all_most, own_most)
  local own, all = book_of(tenant), book(META)
  local fits_all, fits_own = all.bytes + more <= all_most, own_most == 0 or own.bytes + more <= own_most
  if fits_all and fits_own then
    return true
  end
  local names = holders(tenant)
  if not has_place(names, tenant, more, all_most, own_most) then
    return false
  end
  while own_most > 0 and own.bytes + more > own_most and dropped < DROPPED_MOST do
    drop_oldest(tenant)
  end
  while all.bytes + more > all_most and dropped < DROPPED_MOST do
    local whose = victim(names, tenant, "bytes", more, all_most)
    if not whose then
      return false
    end
    drop_oldest(whose)
  end
  return all.bytes + more <= all_most and (own_most == 0 or own.bytes + more <= own_most)
end
