"""The purpose of each variable that other software defines and Trainfleet reads or sets."""

from __future__ import annotations

from tools.reference.variable_model import Group, Variable

STORES = Group(
    "Object stores",
    "Credentials come from each cloud's default chain: environment, files, or the identity of the "
    "machine or pod. Keys "
    "are never forwarded to pods.",
    (
        Variable(
            "AWS_ENDPOINT_URL_S3",
            "URL of an S3-compatible store. Forwarded to pods.",
            "`s3://` URLs",
            "`AWS_ENDPOINT_URL`",
        ),
        Variable(
            "AWS_ENDPOINT_URL",
            "URL of an S3-compatible store. Forwarded to pods.",
            "`s3://` URLs",
            "Amazon S3",
        ),
        Variable(
            "ARM_CLIENT_ID",
            "Application of the service principal, as for Pulumi's provider.",
            "`trainfleet preflight` on Azure",
            "the Azure CLI's login",
        ),
        Variable(
            "ARM_TENANT_ID",
            "Tenant of the service principal.",
            "`trainfleet preflight` on Azure",
            "`azure-native:tenantId`",
        ),
        Variable(
            "ARM_CLIENT_SECRET",
            "Secret of the service principal.",
            "`trainfleet preflight` on Azure",
            "`ARM_OIDC_TOKEN`",
        ),
        Variable(
            "ARM_OIDC_TOKEN",
            "Token of a CI system that is exchanged for one of the service principal.",
            "`trainfleet preflight` on Azure",
            "that of `ARM_USE_OIDC`",
        ),
        Variable(
            "ARM_USE_OIDC",
            "`true` requests the token of a GitHub job with `ACTIONS_ID_TOKEN_REQUEST_URL` and"
            " `ACTIONS_ID_TOKEN_REQUEST_TOKEN`, which GitHub sets.",
            "`trainfleet preflight` on Azure",
            "unset",
        ),
        Variable(
            "AWS_REGION",
            "Region of the bucket. Forwarded to pods.",
            "`s3://` URLs",
            "`AWS_DEFAULT_REGION`, else looked up; `us-east-1` with an endpoint",
        ),
        Variable(
            "AWS_DEFAULT_REGION", "Region, if `AWS_REGION` is unset. Forwarded to pods.", "`s3://` URLs"
        ),
        Variable(
            "AWS_CA_BUNDLE",
            "File with the certificate authority of the store. Its certificates are forwarded to pods.",
            "`s3://` URLs, launchers",
            "`SSL_CERT_FILE`",
        ),
        Variable(
            "SSL_CERT_FILE", "File with certificate authorities, if `AWS_CA_BUNDLE` is unset.", "`s3://` URLs"
        ),
        Variable(
            "STORAGE_EMULATOR_HOST",
            "URL of a server that implements Google Cloud Storage, used without credentials. Forwarded "
            "to pods.",
            "`gs://` URLs",
            "Google Cloud Storage",
        ),
        Variable(
            "AZURE_STORAGE_ACCOUNT_NAME",
            "Storage account, if the URL names only a container. Forwarded to pods.",
            "`az://` URLs",
            "`AZURE_STORAGE_ACCOUNT`, else that of the connection string",
        ),
        Variable("AZURE_STORAGE_ACCOUNT", "The same.", "`az://` URLs"),
        Variable(
            "AZURE_STORAGE_ACCOUNT_KEY",
            "Key of the account.",
            "`az://` URLs",
            "`AZURE_STORAGE_KEY`, else the default chain",
        ),
        Variable("AZURE_STORAGE_KEY", "The same.", "`az://` URLs"),
        Variable("AZURE_STORAGE_SAS_TOKEN", "Shared access signature, if there is no key.", "`az://` URLs"),
        Variable(
            "AZURE_STORAGE_CONNECTION_STRING",
            "Account, key and endpoint in one string. The other variables take precedence.",
            "`az://` URLs",
        ),
    ),
)
RAY = Group(
    "Ray and process groups",
    "Ray and PyTorch read more variables of their own.",
    (
        Variable(
            "RAY_ADDRESS",
            "Address of an existing Ray cluster, such as `10.0.0.4:6379` or `auto`.",
            "`train`, `launch` and `tune` with `--on local`, `serve`, `python -m trainfleet.training.run`",
            "Ray is started on this machine, for the run",
        ),
        Variable(
            "RAY_AUTH_MODE",
            "Authentication of a Ray that a run starts itself.",
            "the training driver",
            "`token`",
        ),
        Variable(
            "RAY_AUTH_TOKEN", "Token of a Ray that a run starts itself.", "the training driver", "random"
        ),
        Variable(
            "RAY_DASHBOARD_ADDRESS",
            "URL of Ray's job server. KubeRay sets it.",
            "the job submitter",
            "required there",
        ),
        Variable(
            "RAY_JOB_SUBMISSION_ID", "ID of the job. KubeRay sets it.", "the job submitter", "required there"
        ),
        Variable(
            "RANK",
            "Rank of the process. With it, a process joins a process group instead of starting Ray.",
            "each rank",
            "`0`",
        ),
        Variable("WORLD_SIZE", "Number of ranks.", "each rank", "`1`"),
        Variable("LOCAL_RANK", "Rank on this machine, which selects the GPU.", "each rank", "`0`"),
        Variable("LOCAL_WORLD_SIZE", "Ranks on this machine.", "each rank", "`WORLD_SIZE`"),
        Variable("MASTER_ADDR", "Address of rank 0.", "each rank"),
        Variable(
            "CUDA_VISIBLE_DEVICES", "GPUs that processes of this machine may use.", "launchers", "all GPUs"
        ),
        Variable(
            "NCCL_NET",
            "Network that NCCL must use. A run over several nodes tests it before it trains, and fails "
            "without it.",
            "each rank",
            "the network of the platform's contract on whole nodes, else chosen by NCCL",
        ),
        Variable(
            "TORCH_FR_BUFFER_SIZE",
            "Collectives that NCCL's flight recorder keeps; 0 turns it off.",
            "each rank with a GPU",
            "`2000`",
        ),
        Variable(
            "TORCH_FR_DUMP_ON_TIMEOUT",
            "Whether the flight recorder writes its files when a collective times out.",
            "each rank with a GPU",
            "`true`",
        ),
        Variable(
            "TORCH_NCCL_ENABLE_MONITORING",
            "Whether a process ends when NCCL's watchdog no longer responds.",
            "each rank with a GPU",
            "`1`",
        ),
        Variable(
            "LD_LIBRARY_PATH",
            "Folders of the dynamic loader. A process without a GPU says if GKE's driver folder is missing "
            "in it.",
            "each rank",
            "of the image",
        ),
        Variable(
            "GLOO_SOCKET_IFNAME",
            "Network interface of Gloo.",
            "each rank",
            "`lo` if all ranks are on one machine, else chosen by Gloo",
        ),
        Variable(
            "CUBLAS_WORKSPACE_CONFIG",
            "Workspace of cuBLAS; a fixed one makes results repeatable.",
            "each rank whose recipe is `deterministic`",
            "`:4096:8`",
        ),
    ),
)
CLUSTERS = Group(
    "Kubernetes and SkyPilot",
    "",
    (
        Variable(
            "KUBECONFIG",
            "Kubeconfig files. Trainfleet writes only to the first.",
            "`cloud: local` platforms, launchers, `sky setup`",
            "`~/.kube/config`",
        ),
        Variable(
            "NO_PROXY",
            "Hosts and networks that are reached without the proxy of `HTTPS_PROXY`; also `no_proxy`.",
            "launchers, `runs`",
        ),
        Variable(
            "SKYPILOT_GLOBAL_CONFIG",
            "SkyPilot's configuration file.",
            "`sky setup`, `launch --on sky`",
            "`~/.sky/config.yaml`",
        ),
        Variable(
            "SKYPILOT_PROJECT_CONFIG",
            "SkyPilot's configuration file of a folder. Its namespaces come before those of the other file.",
            "`launch --on sky` with `--context`",
            "`.sky.yaml`",
        ),
        Variable(
            "SKYPILOT_SERVER_PLUGINS_CONFIG",
            "Plug-in configuration of SkyPilot's API server.",
            "`sky setup`",
            "`~/.sky/plugins.yaml`",
        ),
        Variable(
            "SKYPILOT_API_SERVER_ENDPOINT",
            "URL of a remote SkyPilot API server. With it, no local server is started.",
            "`launch --on sky`",
        ),
        Variable(
            "SKYPILOT_API_SERVER_LOCAL_PORT", "Port of the local API server.", "`launch --on sky`", "`46580`"
        ),
        Variable(
            "SKYPILOT_DISABLE_USAGE_COLLECTION",
            "SkyPilot's usage reports.",
            "`launch --on sky`",
            "`1`: no reports",
        ),
        Variable(
            "SKYPILOT_ENABLE_GRPC",
            "Whether SkyPilot calls its process in a cluster's head through gRPC.",
            "`launch --on sky --cluster`",
            "`1`",
        ),
    ),
)
IMAGES = Group(
    "Images",
    "",
    (
        Variable(
            "REGISTRY_AUTH_FILE",
            "File with the logins of buildah and podman.",
            "`image push`, `image list`",
            "`containers/auth.json` in `XDG_RUNTIME_DIR`",
        ),
        Variable(
            "XDG_RUNTIME_DIR",
            "Folder in which buildah and podman keep logins.",
            "`image push`, `image list`",
            "`/run/containers/UID`",
        ),
        Variable(
            "DOCKER_CONFIG",
            "Folder of docker's configuration, with its logins.",
            "`image push`, `image list`",
            "`~/.docker`",
        ),
        Variable(
            "DOCKER_HOST",
            "Address of docker's daemon; by default that of docker's current context.",
            "`image push`",
        ),
    ),
)
FOLDERS = Group(
    "Folders and libraries",
    "",
    (
        Variable(
            "HELM_CACHE_HOME",
            "helm's cache, in which a chart is looked for before it is downloaded.",
            "`trainfleet diff` of charts",
            "helm's own folder",
        ),
        Variable(
            "HELM_REPOSITORY_CACHE",
            "The archives of charts in helm's cache.",
            "`trainfleet diff` of charts",
            "`repository` in `HELM_CACHE_HOME`",
        ),
        Variable(
            "XDG_CACHE_HOME",
            "Base of the cache folder, on Linux: prepared data, built engines, cluster images.",
            "commands that cache",
            "`~/.cache`",
        ),
        Variable(
            "XDG_STATE_HOME",
            "Base of the state folder: local clusters, files of `launch --on ray-up`.",
            "`cluster`, `launch --on ray-up`",
            "`~/.local/state`",
        ),
        Variable(
            "XDG_DATA_HOME",
            "Base of the data folder: objects of `cluster store`.",
            "`cluster store`",
            "`~/.local/share`",
        ),
        Variable(
            "WANDB_MODE",
            "`offline`: Weights & Biases needs no network. Forwarded to pods.",
            "the wandb package",
        ),
        Variable(
            "HF_HUB_OFFLINE",
            "`1`: only cached models and data sets. Forwarded to pods.",
            "Hugging Face packages",
        ),
    ),
)
