"""The purpose of each environment variable. `tools.reference.scan` finds the variables."""

from __future__ import annotations

from tools.reference.other_variables import CLUSTERS, FOLDERS, IMAGES, RAY, STORES
from tools.reference.variable_model import Group, Variable

SETTINGS = Group(
    "Settings",
    "Set these to change how Trainfleet works on this machine.",
    (
        Variable(
            "TRAINFLEET_CACHE",
            "Folder for prepared data, tokenizers and blocks fetched from object stores. Its `data` "
            "subfolder is used.",
            "every process that prepares or reads data",
            "the user's cache folder, `~/.cache/trainfleet` on Linux",
        ),
        Variable(
            "TRAINFLEET_S3_ENDPOINT",
            "URL of an S3-compatible store. Takes precedence over `AWS_ENDPOINT_URL_S3` and "
            "`AWS_ENDPOINT_URL`. "
            "Other programs do not read it. Forwarded to pods.",
            "object stores with `s3://` URLs",
            "Amazon S3",
        ),
        Variable(
            "TRAINFLEET_AZURE_ENDPOINT",
            "URL of a server that implements Azure Blob Storage. Forwarded to pods.",
            "object stores with `az://` URLs",
            "the endpoint of the account",
        ),
        Variable(
            "TRAINFLEET_DATE",
            "The day as of which support calendars and exceptions are checked, as year-month-day.",
            "every command of platforms",
            "today",
        ),
        Variable(
            "TRAINFLEET_OWNER",
            "Who runs belong to, such as a person, team or project: in `runs list` and `runs cost`.",
            "every command that launches a run",
            "the user's name",
        ),
        Variable(
            "TRAINFLEET_PULUMI",
            "Path of the Pulumi engine to use. An engine that is too old is rejected.",
            "`rehearse`, `diff`, `doctor`",
            "`pulumi` on PATH if it is new enough, else an engine built from pinned sources",
        ),
        Variable(
            "TRAINFLEET_PYTHON",
            "Python interpreter of the Pulumi program, if neither `VIRTUAL_ENV` nor a `.venv` above the "
            "program has "
            "Trainfleet installed.",
            "the language host and policy analyzer of a built Pulumi engine",
            "`python3`",
        ),
        Variable(
            "TRAINFLEET_RAY_STORAGE",
            "Folder or URL for Ray Train's own results on a cluster named by `RAY_ADDRESS`. Checkpoints "
            "and metrics of "
            "a run are in the recipe's `storage` and do not depend on it.",
            "`python -m trainfleet.training.run`, `train`, `launch --on local`",
            "Ray Train's results are discarded",
        ),
    ),
)
INTERNAL = Group(
    "Set by launchers",
    "Launchers set these for the processes of a run. Set them yourself only to start "
    "`python -m trainfleet.training.run` directly.",
    (
        Variable(
            "TRAINFLEET_ALLOW_CHANGES",
            "Recipe keys, separated by commas, that may differ from those of the checkpoint: "
            "`--allow-change`.",
            "each rank",
            "none",
        ),
        Variable(
            "TRAINFLEET_JOB",
            "JSON of what the ranks do instead of training: `evaluate --on`, `predict --on`.",
            "the training driver, each rank",
            "they train",
        ),
        Variable(
            "TRAINFLEET_CODE",
            "URL of the archive with the user's code, which is imported first: `--code`. Or a folder.",
            "the training driver, each rank",
            "none",
        ),
        Variable(
            "TRAINFLEET_CODE_FOLDER",
            "Folder in which that archive is unpacked.",
            "the training driver, each rank",
            "`trainfleet-code-UID` in the temporary folder",
        ),
        Variable(
            "TRAINFLEET_CODE_COPIES",
            "Folder that may hold a copy of that archive, for machines that cannot read the run's storage.",
            "the training driver, each rank",
            "none",
        ),
        Variable(
            "TRAINFLEET_RUN_DIR",
            "Folder of the run.",
            "the training driver",
            "`<storage>/<name>` of the recipe",
        ),
        Variable(
            "TRAINFLEET_RANKS",
            "Folder in which each rank of a pod keeps a note until it has saved; a drained pod waits for it.",
            "each rank of a pod, and the pod's preStop hook",
        ),
        Variable(
            "TRAINFLEET_STOP_FILE",
            "Path of a file. When it appears, each rank finishes its step, saves a checkpoint and exits.",
            "each rank, jobs, and the processes that follow remote runs",
        ),
        Variable(
            "TRAINFLEET_EVENTS",
            "Where events go: the path of the launcher's Unix socket, or `stdout` for JSON lines on stdout.",
            "each rank, jobs, and the processes that follow remote runs",
            "readable lines on stdout, no events",
        ),
        Variable(
            "TRAINFLEET_LAUNCH",
            "Name of a launch. Restarted workers recognize their launch by it.",
            "each rank",
            "random",
        ),
        Variable(
            "TRAINFLEET_NOTIFIED_LAUNCH",
            "Name of a launch in messages about the run, where each driver of a launch has its own "
            "`TRAINFLEET_LAUNCH` (SkyPilot).",
            "the training driver, rank 0",
            "`TRAINFLEET_LAUNCH`",
        ),
        Variable(
            "TRAINFLEET_SUBMITTED",
            "Set if the job's submitter reports a failure of the driver.",
            "the training driver",
        ),
        Variable(
            "TRAINFLEET_PARENT",
            "Process ID of the launcher. The process ends when the launcher ends.",
            "processes that a launcher starts",
        ),
        Variable(
            "TRAINFLEET_RAY_TEMP",
            "Folder for the session of a Ray that the run starts itself.",
            "the training driver",
            "a temporary folder",
        ),
        Variable(
            "TRAINFLEET_USD_PER_HOUR",
            "The price of all machines of the run, in USD per hour, for `limits.max_usd` and the step line.",
            "each rank",
            "no price",
        ),
        Variable(
            "TRAINFLEET_RAY_NODES",
            "How many nodes the Ray cluster at `RAY_ADDRESS` will have. The driver waits up to 5 minutes "
            "for them.",
            "the training driver",
            "`1`",
        ),
        Variable(
            "TRAINFLEET_RANK_CPUS",
            "CPUs that a rank reserves in Ray, where each node is sized for its ranks and their processes.",
            "the training driver",
            "`scaling.cpus_per_worker`",
        ),
        Variable(
            "TRAINFLEET_AUTOSCALED",
            "Set if the Ray cluster adds nodes on demand. The driver then accepts a cluster that is "
            "still too small.",
            "the training driver",
        ),
        Variable(
            "TRAINFLEET_RAY_SETTINGS",
            "Variables for the run's own Ray, such as those for TLS, as `NAME=VALUE` separated by spaces.",
            "the start script of SkyPilot tasks",
        ),
        Variable(
            "TRAINFLEET_FILES",
            "Folder with the job description and the recipe of a submitted job.",
            "the job submitter",
            "`/etc/trainfleet`",
        ),
        Variable(
            "TRAINFLEET_RECIPE_DOCUMENT",
            "The resolved recipe, as YAML.",
            "the driver of a job submitted to Ray",
        ),
        Variable(
            "TRAINFLEET_ISOLATED",
            "The process of a policy pack gives up the network before the pack's code runs.",
            "the environment of a rehearsal without `--network`",
        ),
        Variable(
            "TRAINFLEET_RUN",
            "Description of one run of a Pulumi program, as JSON.",
            "the rehearsal's program host",
        ),
    ),
)
TESTING = Group(
    "Fault injection and tests",
    "Not for production.",
    (
        Variable(
            "TRAINFLEET_FAULT",
            "Kills the run with SIGKILL at a failpoint, as `POINT:STEP`. Training: `in-step`, `staged`, "
            "`partly-written`, "
            "`in-save`, `before-marker`, `in-purge`. Data preparation: `in-preparation`, `in-assembly`, "
            "`in-upload`.",
            "each rank, data preparation",
        ),
        Variable(
            "TRAINFLEET_TEST_SEED",
            "Seed that selects the cases of tests marked `sampled`.",
            "the test suite",
            "`0`",
        ),
        Variable(
            "TRAINFLEET_FUZZ_INPUTS",
            "How many inputs the long fuzz tests try per reader.",
            "the test suite",
            "`3000`",
        ),
        Variable(
            "TRAINFLEET_TEST_CLUSTER",
            "Name of a running cluster of `trainfleet cluster up`. Cluster tests use it and leave it "
            "running.",
            "the test suite",
            "a cluster for the tests alone",
        ),
        Variable(
            "TRAINFLEET_TEST_SESSION",
            "ID of a test session, which finds its leftover processes by it. The test suite sets it.",
            "the test suite",
        ),
        Variable(
            "TRAINFLEET_SEED",
            "Seed that selects one property per file in the test of misspelt properties.",
            "the test suite",
            "`7`",
        ),
        Variable(
            "TRAINFLEET_MISSPELT",
            "`all`: the test of misspelt properties tries every property.",
            "the test suite",
        ),
        Variable(
            "TRAINFLEET_FAULT_ROWS",
            "File to which the tests of faults append their seconds, for `python -m tools.fault_table`.",
            "the test suite",
            "none",
        ),
        Variable(
            "TRAINFLEET_REPEATS",
            "How often the tests of lost heads and of the fault table inject each fault.",
            "the test suite",
            "`1`",
        ),
    ),
)
GROUPS = (SETTINGS, STORES, RAY, CLUSTERS, IMAGES, FOLDERS, INTERNAL, TESTING)
