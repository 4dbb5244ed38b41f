# A Ray that ends with the run.
touch ray.log
failed() {
  cat ray.log
  echo "Ray did not start within 5 minutes, or ended" >&2
  exit 1
}
began=$SECONDS
if [ "$SKYPILOT_NODE_RANK" != 0 ]; then
  until answers; do
    [ $((SECONDS - began)) -lt 300 ] || failed
    sleep 0.5
  done
  ray start --address="$head:6379" "${node[@]}" > ray.log 2>&1 &
  own=$!
  # Wait for the head to go: when a script has ended, SkyPilot ends what it started, including Ray's node.
  while answers; do
    sleep 2
    kill -0 "$own" 2>/dev/null || ! answers || failed
  done
  exit 0
fi
# No dashboard: nobody can reach it here, and its processes are slow to start.
ray start --head --port=6379 --include-dashboard=false "${node[@]}" > ray.log 2>&1 &
own=$!
until grep -q "Ray runtime started" ray.log; do
  kill -0 "$own" 2>/dev/null && [ $((SECONDS - began)) -lt 300 ] || failed
  sleep 0.5
done
