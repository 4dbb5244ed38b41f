"""What a pretrained model of transformers must have before a run prepares data and trains it.

A model is a folder of `save_pretrained`, or the name of a model of the hub.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.model_folder import CONFIG, need_transformers

KEY = "workload.model.pretrained"
PREPROCESSOR, TOKENIZER = "preprocessor_config.json", "tokenizer_config.json"
_TASKS = {
    "ctc": ("MODEL_FOR_CTC_MAPPING_NAMES", "a speech model with a CTC head"),
    "seq2seq": ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "a speech encoder-decoder"),
    "image": ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "an image classifier"),
}
"""By task, the names of transformers' architectures for it, and what they are."""


def config_for(name: str, task: str) -> Any:
    """The configuration of a model for a task: `ctc`, `seq2seq` or `image`.

    Raises:
        InputError: transformers is not installed, there is no model, or it is of an architecture that
            transformers has no model of this task for.
    """
    tools = need_transformers(f"{KEY} {name}")
    try:
        config = tools.AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise no_part(name, "model", CONFIG, error) from error
    from transformers.models.auto import modeling_auto as auto

    known, kind = {each: getattr(auto, names) for each, (names, _) in _TASKS.items()}, config.model_type
    if kind not in known[task]:
        fits = [each for each in known if each != "image" and kind in known[each] and task != "image"]
        fix = f"workload.model.kind={fits[0]}" if fits else "use a model for this task"
        if task == "seq2seq" and "ctc" in fits:
            fix += ", which is its default"
        what = f"`{name}` is a {kind} model, not {_TASKS[task][1]}"
        raise InputError("the pretrained model has another architecture", [Problem(KEY, what, fix)])
    return config


def no_part(name: str, part: str, file: str, error: Exception) -> InputError:
    """The error of a model that lacks a part, such as its tokenizer, which is read from `file`."""
    if Path(name).is_dir() and not (Path(name) / file).is_file():
        what = f"`{name}` has no {file}"
        fix = f"copy {file} from the model's publisher into the folder, or save it there with save_pretrained"
        if part == "model":
            fix = "use a folder of save_pretrained, or the name of a model"
    else:
        what = f"`{name}`: {(str(error).strip().splitlines() or [type(error).__name__])[0][:200]}"
        fix = "use a folder of save_pretrained, or a model name (with access to the hub or its cache)"
    return InputError(f"cannot load the {part}", [Problem(KEY, what, fix)])


def preprocessor(name: str) -> dict[str, Any]:
    """The settings of a model's image processor or feature extractor.

    Raises:
        InputError: the model has none, or it cannot be read.
    """
    tools = need_transformers(f"{KEY} {name}")
    try:
        found = json.loads(Path(tools.utils.cached_file(name, PREPROCESSOR)).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"{PREPROCESSOR} is not an object")
    except (OSError, ValueError, TypeError) as error:
        raise no_part(name, "image processor", PREPROCESSOR, error) from error
    return found


@contextlib.contextmanager
def load_reports_hidden(tools: Any) -> Iterator[None]:
    """Without transformers' table of weights that the files lack, for callers that report them: every rank
    would print it.
    """
    before = tools.utils.logging.get_verbosity()
    tools.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        tools.utils.logging.set_verbosity(before)


def require_complete(name: str, missing: Iterable[str]) -> None:
    """Require that the model's files have the weights that a run does not replace.

    Args:
        name: of the model.
        missing: the names of those weights that its files lack.

    Raises:
        InputError: there are some, so that they would be random.
    """
    names = sorted(missing)
    if not names:
        return
    more = f" and {len(names) - 3} more weights" if len(names) > 3 else ""
    what = f"the files of `{name}` lack {', '.join(names[:3])}{more}, which its config.json describes"
    fix = "use weights and a config.json of the same model"
    raise InputError("the pretrained model is not complete", [Problem(KEY, what, fix)])
