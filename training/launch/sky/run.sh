# Runs in every pod. SkyPilot's own Ray (port 6380) is not touched; the run has another (port 6379): own_ray.sh or, on
# a cluster that outlives its runs, kept_ray.sh.
set -euo pipefail
@CLEAN@
mkdir -p "$HOME/trainfleet"
cd "$HOME/trainfleet"
[ "$SKYPILOT_NODE_RANK" != 0 ] || echo '{"kind": "note", "text": "the task runs in the pods: Ray starts"}'
cat > recipe.yaml <<'@MARK@'
@RECIPE@
@MARK@
@AUTHORITY@
# The platform's settings for Ray (TLS) are for this Ray alone.
for setting in ${TRAINFLEET_RAY_SETTINGS:-}; do export "${setting?}"; done
export PATH="$HOME/.local/bin:$PATH" PYTHONUNBUFFERED=1 RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 RAY_DEDUP_LOGS=0
# No drain: when a pod is removed, the signal goes to SkyPilot's processes, not to this Ray.
export RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=300 RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0
head=${SKYPILOT_NODE_IPS%%$'\n'*}
answers() { (exec 3<>"/dev/tcp/$head/6379") 2>/dev/null; }
# SkyPilot's own script for a second Ray queries a package index and imports Ray a dozen times, which takes over a minute on a
# busy node. CPUs are set because a pod without limits sees the node's. Ports are set because SkyPilot's Ray uses two of the
# defaults, and because Ray fails when it cannot find free ports within seconds on a busy machine.
node=(--block --disable-usage-stats --num-cpus=@CPUS@ --num-gpus="${SKYPILOT_NUM_GPUS_PER_NODE:-0}" --metrics-export-port=8080)
node+=(--dashboard-agent-listen-port=52366 --dashboard-agent-grpc-port=52367 --runtime-env-agent-port=52368)
@RAY@
echo '{"kind": "note", "text": "Ray runs in the pods: the driver starts the workers"}'
code=0
export RAY_ADDRESS="$head:6379" TRAINFLEET_EVENTS=stdout
export TRAINFLEET_STOP_FILE=${stop:-/tmp/trainfleet-stop} TRAINFLEET_RAY_NODES=${SKYPILOT_NUM_NODES:-1}
python -m trainfleet.training.run recipe.yaml || code=$?
echo "{\"kind\": \"exit\", \"code\": $code}"
@END@
exit "$code"
