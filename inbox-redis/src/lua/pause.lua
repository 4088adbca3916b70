-- ARGV: handler, whether it is to be paused.
if ARGV[arg + 1] == '1' then
  call('HSET', meta, pause_field(ARGV[arg]), 1)
else
  call('HDEL', meta, pause_field(ARGV[arg]))
  call('PUBLISH', ARGV[6] .. ARGV[arg], '')
end
return 1
