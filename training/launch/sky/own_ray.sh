# A Ray that ends with the run. Ray's node ends if its agent does not report its port within 15 s, as on a busy machine
# or with a cold disk (ray-project/ray#65983), so it is then started again.
touch ray.log
began=$SECONDS
in_time() { [ $((SECONDS - began)) -lt 300 ]; }
failed() {
  cat ray.log
  echo "Ray did not start within 5 minutes, or ended" >&2
  exit 1
}
start() {
  tried=$SECONDS
  ray start "$@" "${node[@]}" > ray.log 2>&1 &
  own=$!
}
# Start Ray again if it has ended before it was complete. What ends within the 15 s has another reason.
start_again() {
  ! kill -0 "$own" 2>/dev/null || return 0
  ! grep -q "Ray runtime started" ray.log && [ $((SECONDS - tried)) -ge 15 ] && in_time || failed
  start "$@"
}
if [ "$SKYPILOT_NODE_RANK" != 0 ]; then
  # The head's agent listens, or the head has answered for longer than a failed start of it takes.
  head_is_complete() { (exec 3<>"/dev/tcp/$head/52366") 2>/dev/null || [ $((SECONDS - tried)) -ge 120 ]; }
  complete=
  while [ -z "$complete" ]; do
    until answers; do
      in_time || failed
      sleep 0.5
    done
    start --address="$head:6379"
    # Wait for the head to go: when a script has ended, SkyPilot ends what it started, including Ray's node. A head that
    # goes before its own node is complete is started again.
    while answers; do
      [ -n "$complete" ] || ! head_is_complete || complete=yes
      sleep 2
      ! answers || start_again --address="$head:6379"
    done
    [ -n "$complete" ] || { kill "$own" 2>/dev/null && wait "$own" || true; }
  done
  exit 0
fi
# No dashboard: nobody can reach it here, and its processes are slow to start.
first=(--head --port=6379 --include-dashboard=false)
start "${first[@]}"
until grep -q "Ray runtime started" ray.log; do
  in_time || failed
  start_again "${first[@]}"
  sleep 0.5
done
