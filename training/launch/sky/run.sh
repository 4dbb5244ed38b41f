# What every pod of the run does. SkyPilot's own Ray (port 6380) is not touched; the run has one of its own (port 6379).
set -euo pipefail
mkdir -p "$HOME/trainfleet"
cd "$HOME/trainfleet"
cat > recipe.yaml <<'@MARK@'
@RECIPE@
@MARK@
@AUTHORITY@
# The platform's settings for Ray (TLS) are for this Ray alone.
for setting in ${TRAINFLEET_RAY_SETTINGS:-}; do export "${setting?}"; done
export PATH="$HOME/.local/bin:$PATH" PYTHONUNBUFFERED=1 RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 RAY_DEDUP_LOGS=0
export RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=300
# SkyPilot's script starts Ray by this. Processors are said, because a pod without limits shows the node's; ports are said, because
# two are taken by SkyPilot's Ray, and Ray gives up when it cannot find out those left open within seconds on a busy machine.
cat > ray.sh <<'END_OF_RAY'
if [ "${1:-}" = start ]; then
  shift
  exec ray start "$@" --num-cpus=@CPUS@ --dashboard-agent-grpc-port=52367 --runtime-env-agent-port=52368 --metrics-export-port=8080
fi
exec ray "$@"
END_OF_RAY
export RAY_CMD="bash $HOME/trainfleet/ray.sh"
head=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
"$HOME/sky_templates/ray/start_cluster"
if [ "$SKYPILOT_NODE_RANK" != 0 ]; then
  # Until the head goes: SkyPilot ends what a script that is over has started, and Ray's node with it.
  while (exec 3<>"/dev/tcp/$head/6379") 2>/dev/null; do sleep 2; done
  exit 0
fi
code=0
export RAY_ADDRESS="$head:6379" TRAINFLEET_EVENTS=stdout TRAINFLEET_STOP_FILE=/tmp/trainfleet-stop
python -m training.run recipe.yaml || code=$?
echo "{\"kind\": \"exit\", \"code\": $code}"
# The other pods see the head go, and end.
"$HOME/sky_templates/ray/stop_cluster" > /dev/null 2>&1 || true
exit "$code"
