-- What wrk sends: load.py sets the environment. Runs take turns: each makes `each` calls, then the next one does.
local runs, each, sent = {}, tonumber(os.getenv("BENCH_EACH")), tonumber(os.getenv("BENCH_FIRST"))
local first = sent
local MARK = "@number@"

function init()
  local bytes = tonumber(os.getenv("BENCH_BODY_BYTES"))
  local body = bytes > 0 and string.rep("b", bytes - 2) or nil
  if body then body = '"' .. body .. '"' end
  local path = wrk.path .. (os.getenv("BENCH_DIFFERENT") == "1" and "/" .. MARK or "")
  for token in os.getenv("BENCH_TOKENS"):gmatch("%S+") do
    local headers = { Authorization = "Bearer " .. token }
    if body then headers["Content-Type"] = "application/json" end
    local whole = wrk.format(os.getenv("BENCH_METHOD"), path, headers, body)
    local at, last = whole:find(MARK, 1, true)
    runs[#runs + 1] = at and { whole:sub(1, at - 1), whole:sub(last + 1) } or { whole }
  end
end

function request()
  local run = runs[math.floor((sent - first) / each) % #runs + 1]
  sent = sent + 1
  return run[2] and run[1] .. sent .. run[2] or run[1]
end
