# These pods outlive their runs, and so does their Ray: its start takes as long as all the rest. It is started again
# when the head has another address, or a variable that its processes inherit has another value.
kept="$HOME/.trainfleet"
mkdir -p -m 700 "$kept"
# The lock is held as long as Ray's own process runs, so a process with a number that was used before is never ended.
alive() { ! flock --nonblock "$kept/lock" true; }
inherited=(@VARIABLES@)
key=$({ echo "@CPUS@ $head" && for name in "${inherited[@]}"; do echo "$name=${!name-}"; done && cat ca.crt 2>/dev/null; } |
  sha256sum) || true
failed() {
  cat "$kept/ray.log"
  echo "Ray did not start within 5 minutes, or ended" >&2
  exit 1
}
if [ "$(cat "$kept/key" 2>/dev/null)" != "$key" ]; then
  if alive; then
    kill -TERM -- "-$(cat "$kept/pid")" || true
    flock --wait 20 "$kept/lock" true || kill -KILL -- "-$(cat "$kept/pid")" || true
    flock --wait 20 "$kept/lock" true || { echo "an earlier Ray does not end" >&2; exit 1; }
  fi
  (umask 077 && echo "${RAY_AUTH_TOKEN:-}" > "$kept/token")
  echo "$key" > "$kept/key"
fi
# The token of the run that started it: all pods got the same.
RAY_AUTH_TOKEN=$(cat "$kept/token")
if [ -n "$RAY_AUTH_TOKEN" ]; then export RAY_AUTH_TOKEN; else unset RAY_AUTH_TOKEN; fi
if ! alive; then
  rm -rf "${RAY_TMPDIR:-/tmp}/ray"
  : > "$kept/ray.log"
  rm -f "$kept/pid"
  # In a session of its own and without the lock of this run. SkyPilot looks at the processes below a script every
  # second and ends those that it saw last with the script. So the first process here waits until `setsid` has ended
  # and it is no longer below the script, and the second one, which becomes Ray, has never been.
  RAY_HEAD=$([ "$SKYPILOT_NODE_RANK" = 0 ] || echo "$head") @LEAVE_OUT@ setsid --fork bash -c '
    while read -r _ _ _ parent _ < "/proc/$$/stat" && [ "$(cat "/proc/$parent/comm" 2>/dev/null)" = setsid ]; do
      sleep 0.05
    done
    exec setsid --fork bash -c "$@"
  ' detach '
    exec 8> "$1/lock" && flock 8 && echo $$ > "$1/pid" && log=$1/ray.log && shift
    # As in own_ray.sh: a head whose agent is slow is started again.
    while [ -z "$RAY_HEAD" ]; do
      tried=$SECONDS
      ray start --head --port=6379 --include-dashboard=false "$@" || true
      ! grep -q "Ray runtime started" "$log" && [ $((SECONDS - tried)) -ge 15 ] && [ $SECONDS -lt 300 ] || exit 1
    done
    while true; do
      until (exec 3<>"/dev/tcp/$RAY_HEAD/6379") 2>/dev/null; do sleep 0.5; done
      ray start --address="$RAY_HEAD:6379" "$@" || true
      sleep 1
    done
  ' kept "$kept" "${node[@]}" > "$kept/ray.log" 2>&1 < /dev/null 9>&-
  began=$SECONDS
  until [ -s "$kept/pid" ]; do
    [ $((SECONDS - began)) -lt 60 ] || failed
    sleep 0.1
  done
fi
# The driver waits for the nodes of the other pods, and the head alone knows the end of the run.
[ "$SKYPILOT_NODE_RANK" = 0 ] || exit 0
began=$SECONDS
until answers && grep -q "Ray runtime started" "$kept/ray.log"; do
  [ $((SECONDS - began)) -lt 10 ] || alive || failed
  [ $((SECONDS - began)) -lt 300 ] || failed
  sleep 0.5
done
