# Runs in every pod. SkyPilot's own Ray (port 6380) is not touched; the run has its own (port 6379).
set -euo pipefail
@CLEAN@
mkdir -p "$HOME/trainfleet"
cd "$HOME/trainfleet"
touch ray.log
cat > recipe.yaml <<'@MARK@'
@RECIPE@
@MARK@
@AUTHORITY@
# The platform's settings for Ray (TLS) are for this Ray alone.
for setting in ${TRAINFLEET_RAY_SETTINGS:-}; do export "${setting?}"; done
export PATH="$HOME/.local/bin:$PATH" PYTHONUNBUFFERED=1 RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 RAY_DEDUP_LOGS=0
# No drain: when a pod is removed, the signal goes to SkyPilot's processes, not to this Ray.
export RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=300 RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0
head=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
answers() { (exec 3<>"/dev/tcp/$head/6379") 2>/dev/null; }
# SkyPilot's own script for a second Ray queries a package index and imports Ray a dozen times, which takes over a minute on a
# busy node. CPUs are set because a pod without limits sees the node's. Ports are set because SkyPilot's Ray uses two of the
# defaults, and because Ray fails when it cannot find free ports within seconds on a busy machine.
node=(--block --disable-usage-stats --num-cpus=@CPUS@ --num-gpus="${SKYPILOT_NUM_GPUS_PER_NODE:-0}" --metrics-export-port=8080)
node+=(--dashboard-agent-listen-port=52366 --dashboard-agent-grpc-port=52367 --runtime-env-agent-port=52368)
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
code=0
export RAY_ADDRESS="$head:6379" TRAINFLEET_RAY_FOR_RUN=1 TRAINFLEET_EVENTS=stdout TRAINFLEET_STOP_FILE=/tmp/trainfleet-stop
python -m trainfleet.training.run recipe.yaml || code=$?
echo "{\"kind\": \"exit\", \"code\": $code}"
# The other pods notice that the head is gone, and end.
kill "$own" && wait "$own" || true
exit "$code"
