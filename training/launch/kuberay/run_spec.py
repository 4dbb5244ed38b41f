"""A run on KubeRay, resolved: cluster, image, pool, and how its workers fill pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput
from trainfleet.training.launch.kuberay.gcs_store import GcsStore, gcs_store
from trainfleet.training.launch.kuberay.options import KubeRayOptions
from trainfleet.training.launch.kuberay.timeouts import Timeouts, timeouts
from trainfleet.training.launch.kuberay.worker_size import worker_size
from trainfleet.training.launch.names import shortened
from trainfleet.training.launch.owner import owner_of
from trainfleet.training.launch.platform_outputs import NamedPlatform, external_cluster
from trainfleet.training.launch.remote import pod_template
from trainfleet.training.launch.remote.fabric import unusable_fabric
from trainfleet.training.launch.remote.node_size import too_large
from trainfleet.training.launch.remote.platform_objects import pod_secrets
from trainfleet.training.launch.remote.pod_template import PodTemplates
from trainfleet.training.launch.remote.pool_choice import choose_pool, too_many_nodes, workers_per_machine
from trainfleet.training.launch.remote.priority import choose_priority
from trainfleet.training.launch.remote.ray_job import RAY_VERSION
from trainfleet.training.launch.remote.run_price import unpriced, usd_per_hour
from trainfleet.training.launch.remote.secret_variables import unset
from trainfleet.training.launch.remote.storage_env import certificates, forwarded, unreachable
from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.limits import LATE_S, Used, seconds_left

MAX_NAME_LENGTH = 47
"""Of a RayJob: KubeRay appends to it, and rejects longer names (MaxRayJobNameLength)."""


"""What a run that has reached a limit may take to save and end."""


@dataclass(frozen=True)
class RunSpec:
    """A run on a cluster."""

    recipe: Recipe
    outputs: PlatformOutputs
    context: str | None
    """A context of the user's kubeconfig; None: the kubeconfig of the contract."""
    namespace: str
    image: str
    pool: PoolOutput | None
    per_pod: int
    """Workers in a pod."""
    pods: int
    min_pods: int
    job: str
    launch: str
    cluster: str | None
    secrets: tuple[str, ...]
    env: dict[str, str]
    ca: str
    """Certificates (PEM) of the CA of a private store, or empty."""
    within_s: float
    allow_changes: tuple[str, ...]
    instead: str = ""
    """What the ranks do instead of training, or empty: `Request.job`."""
    code: str = ""
    """The URL of the user's code, or empty."""
    templates: PodTemplates = field(default_factory=PodTemplates)
    """The user's changes of the pods."""
    gcs_store: GcsStore | None = None
    """What survives the head, if anything."""
    serving: bool = False
    """Whether its cluster serves a model, and has no drivers."""
    owner: str = ""
    priority: str = ""
    """Its priority class, or empty."""

    @property
    def driver_pod(self) -> bool:
        """Whether drivers have a pod of their own, and survive the head."""
        return self.gcs_store is not None and not self.serving

    @property
    def ray_pods(self) -> int:
        """The pods of the Ray cluster: the head, the workers, and that of drivers."""
        return 1 + self.pods + (1 if self.driver_pod else 0)

    @property
    def timeouts(self) -> Timeouts:
        """The waits that grow with its pods."""
        return timeouts(self.pods)

    @property
    def usd_per_hour(self) -> float | None:
        """The price of the workers' machines, if the contract has it."""
        return usd_per_hour(self.pool, self.pods)

    @property
    def deadline_s(self) -> int | None:
        """After how long Kubernetes ends a run that does not keep its own limits; None: never."""
        left = seconds_left(self.recipe.limits, self.usd_per_hour, Used(0.0, None))
        return None if left is None else round(left + self.within_s + LATE_S)

    @property
    def elastic(self) -> bool:
        """Whether the run continues with fewer pods."""
        return self.min_pods < self.pods

    @property
    def autoscaled(self) -> bool:
        """Whether Ray requests pods as it needs them.

        Kueue admits a run as a whole and rejects one that grows by itself.
        """
        return self.elastic and not self.outputs.queue


def job_name(run: str) -> str:
    """The name of a run's RayJob: always the same, so that a second launch finds the first."""
    return shortened(f"tf-{run}", MAX_NAME_LENGTH)


def resolve(
    recipe: Recipe,
    target: Target,
    options: KubeRayOptions,
    env: Mapping[str, str],
    *,
    serving: bool = False,
) -> RunSpec:
    """What a launch runs, and where.

    `serving`: for `trainfleet serve`, which keeps Ray's control store in Redis where the platform has one.

    Raises:
        InputError: everything that is missing or does not fit, at once. The pods of a run that a launch only
            follows exist, so that nothing of them is checked.
    """
    outputs, problems = _outputs(target, options)
    pool, pool_problems = choose_pool(
        recipe, outputs, options.pool, lambda each: not _oversized(recipe, each)
    )
    ca, ca_problems = certificates(env)
    per_pod = workers_per_machine(recipe, pool)
    pods = -(-recipe.scaling.workers // per_pod)
    priority, priority_problems = choose_priority(outputs.priority_classes, options.priority)
    store, store_problems = gcs_store(options, outputs, default=serving)
    if not options.attach:
        problems += [*pool_problems, *_problems_of_pods(recipe, pool, per_pod, pods)]
        problems += [*_unreported(recipe, outputs, options), *unreachable(recipe.storage, env)]
        problems += [*ca_problems, *priority_problems, *store_problems]
    if problems:
        raise InputError("the cluster cannot run this as requested", problems)
    return RunSpec(
        recipe=recipe,
        outputs=outputs,
        context=options.context,
        namespace=options.namespace or outputs.namespace,
        image=options.image or outputs.image,
        pool=pool,
        per_pod=per_pod,
        pods=pods,
        min_pods=-(-(recipe.scaling.min_workers or recipe.scaling.workers) // per_pod),
        job=job_name(recipe.name),
        launch=target.launch_id,
        cluster=options.cluster,
        secrets=pod_secrets(outputs, options.from_secrets),
        env=forwarded(env),
        ca=ca,
        within_s=_within_s(options, pods),
        allow_changes=target.request.allow_changes,
        instead=target.request.job,
        code=target.code_url,
        templates=pod_template.collect(outputs, pool, recipe.pod_template, options.pod_template),
        gcs_store=store,
        serving=serving,
        owner=owner_of(env),
        priority=priority,
    )


def _problems_of_pods(recipe: Recipe, pool: PoolOutput | None, per_pod: int, pods: int) -> list[Problem]:
    """Why the workers do not fit the nodes, the price or the fabric of their pool."""
    gpus = per_pod if recipe.scaling.use_gpu else 0
    where = f"pool {pool.name}" if pool else "nodes without a pool"
    return [
        *too_many_nodes(recipe, pool),
        *_oversized(recipe, pool),
        *unpriced(recipe, usd_per_hour(pool, pods), where),
        *_fabric_problems(pool, gpus, pods),
    ]


def _fabric_problems(pool: PoolOutput | None, gpus: int, pods: int) -> list[Problem]:
    if why := unusable_fabric(pool, gpus, pods):
        fix = "--pool with another pool, or `interconnect: none` in the spec of the pool"
        return [Problem("--pool", why, fix)]
    return []


def _within_s(options: KubeRayOptions, pods: int) -> float:
    """How long the run may wait for its machines: as given, else by its size."""
    given = "within_s" in options.model_fields_set
    return options.within_s if given else timeouts(pods).machines_s


def _unreported(recipe: Recipe, outputs: PlatformOutputs, options: KubeRayOptions) -> list[Problem]:
    """The variables of the recipe's notifications that no pod has."""
    unknown = bool(options.from_secrets or options.pod_template)
    fix = "secrets.names of the platform, or --from-secret NAME"
    return unset(recipe.notifications, outputs.secrets, unknown=unknown, fix=fix)


def _oversized(recipe: Recipe, pool: PoolOutput | None) -> list[Problem]:
    """What a worker's pod requests and no node of this pool has."""
    size = worker_size(recipe, pool, workers_per_machine(recipe, pool))
    return too_large(pool, size, recipe.scaling.cpus_per_worker)


def _no_cluster(platform: NamedPlatform, options: KubeRayOptions) -> list[Problem]:
    """What is wrong with a stack that has no cluster: the current one of the kubeconfig is another."""
    outputs = platform.outputs
    if options.context or outputs.kube_context or outputs.kubeconfig.strip() not in ("", "{}"):
        return []
    what = "its outputs have no cluster"
    return [Problem(f"--stack {platform.name}", what, "a stack with a cluster, or --context NAME")]


def _outputs(target: Target, options: KubeRayOptions) -> tuple[PlatformOutputs, list[Problem]]:
    """The platform, or what is known of the cluster behind `--context`, and mistakes in the options."""
    problems = []
    if options.cluster and options.workload_check == "always":
        what = f"the pods of {options.cluster} are not created by this run, and have an image of their own"
        problems.append(Problem("--workload-check always", what, "leave it out, or leave out --cluster"))
    if options.cluster and options.priority:
        what = f"the priority of {options.cluster} is that of the pods it has"
        problems.append(Problem("--priority", what, "leave it out, or leave out --cluster"))
    if len(target.platforms) > 1:
        fix = "name one; `--on sky` chooses between several"
        problems.append(Problem("--stack", "a run on KubeRay is on one cluster", fix))
    if target.platform is not None:
        return target.platform.outputs, [*problems, *_no_cluster(target.platform, options)]
    if options.context is None:
        fix = "--stack OUTPUTS.json, or --context NAME --namespace NS --image REF"
        problems.append(Problem("--stack", "which cluster?", fix))
    else:
        problems += [
            Problem(option, "is missing: no stack defines it for this context", f"add {option}")
            for option, value in (("--namespace", options.namespace), ("--image", options.image))
            if not value
        ]
    bare = external_cluster("", options.namespace or "", options.image or "", "")
    return bare.model_copy(update={"cloud": "", "ray_version": RAY_VERSION}), problems
