"""The parts of the model card. Each gives its lines.

Every fact is computed from what the stages wrote.
"""

from collections import Counter
from collections.abc import Iterator

from pipeline.base.text import in_words
from pipeline.cards.facts import Facts
from pipeline.cards.markdown import MOST_ROWS, escaped, table, unshown
from pipeline.config.model_names import TIMM
from pipeline.data import credits
from pipeline.data.split_table import SPLITS
from pipeline.evaluation import metrics
from pipeline.models import hub
from pipeline.reporting import settings

MOST_CREDITED = 5000  # photographers
FEW_IMAGES = 30  # in the test split: the figures of such a class say little
SOURCES = {
    "archive": "an archive with the SHA-256 `{sha256}`",
    "inbox": "the owner's own photos",
    "folder": "the owner's own photos",
    "synthetic": "drawn flowers, free of rights (CC0)",
}


def card(facts: Facts) -> str:
    """The whole card."""
    parts = (front_matter, summary, quality, images, rights, loading, seeing, limits, repeating, decided)
    return "\n".join(line for part in parts for line in (*part(facts), "")).rstrip() + "\n"


def front_matter(facts: Facts) -> Iterator[str]:
    """What the Hub reads: the task, the library, and the figures. The owner of the weights may add a license."""
    figures = facts.outcome.figures
    low, high = figures.interval
    named = {"accuracy": figures.accuracy, "balanced_accuracy": figures.balanced_accuracy, "f1": figures.macro_f1}
    yield "---"
    yield f"library_name: {'timm' if hub.in_timm(facts.model.model) else 'torchvision'}"
    yield "pipeline_tag: image-classification"
    yield "tags:"
    yield from (f"- {tag}" for tag in ("image-classification", "perennial", *["onnx"] * facts.config.evaluate.onnx))
    yield "metrics:"
    yield from (f"- {name}" for name in ("accuracy", "f1"))
    yield "model-index:"
    yield f"- name: {facts.model.model}"
    yield "  results:"
    yield "  - task:"
    yield "      type: image-classification"
    yield "    dataset:"
    yield "      type: imagefolder"
    yield f"      name: {facts.test_images} test images"
    yield "    metrics:"
    for name, value in named.items():
        yield f"    - type: {name}"
        yield f"      value: {value:.4f}"
        yield f"      name: {name}" + (f" (95 % interval {low:.4f} to {high:.4f})" if name == "accuracy" else "")
    yield "---"


def summary(facts: Facts) -> Iterator[str]:
    """The model in three sentences."""
    model, train = facts.model, facts.config.train
    weights = {"none": "from random weights", "imagenet": "from weights pretrained on ImageNet"}
    begin = weights.get(train.weights, "from the weights of another model")
    figures = facts.outcome.figures
    low, high = figures.interval
    yield f"# {model.model} for {len(model.classes):,} classes"
    yield ""
    yield (
        f"An image classifier: {in_words([*map(escaped, model.classes)])}. Trained {begin} on "
        f"{facts.audit.total('train'):,} images with the pipeline Perennial ([how to repeat it](#how-to-repeat-it))."
    )
    yield (
        f"Of {facts.test_images:,} test images, {figures.accuracy:.1%} get the right class (95 % interval: "
        f"{low:.1%} to {high:.1%})."
    )


def quality(facts: Facts) -> Iterator[str]:
    """The figures, and those of the classes, with intervals."""
    found, counts = facts.outcome.figures, facts.outcome.counts
    low, high = found.interval
    yield "## How good it is"
    yield ""
    yield from table(
        ("figure", "value", "meaning"),
        [
            ("accuracy", f"{found.accuracy:.4f} ({low:.4f} to {high:.4f})", "share of right answers, 95 % interval"),
            ("balanced accuracy", f"{found.balanced_accuracy:.4f}", "mean recall of the classes"),
            ("macro F1", f"{found.macro_f1:.4f}", "mean F1 of the classes"),
            ("negative log-likelihood", f"{found.nll:.4f}", "0 is perfect; confident mistakes cost most"),
            (
                "calibration error",
                f"{found.ece:.4f}",
                "distance of probability and share of right answers; 0 is perfect",
            ),
        ],
    )
    yield ""
    rows = [
        (
            escaped(row.name),
            f"{row.images:,}",
            f"{row.recall:.3f} ({share_interval(right, row.images)})",
            f"{row.precision:.3f}",
            f"{row.f1:.3f}",
        )
        for row, right in zip(metrics.class_table(counts, facts.model.classes), counts.diagonal().tolist(), strict=True)
    ]
    yield from table(("class", "test images", "recall (95 % interval)", "precision", "F1"), rows[:MOST_ROWS])
    yield from unshown(len(rows))


def images(facts: Facts) -> Iterator[str]:
    """Where the images come from, how many there are, and what was left out."""
    found, data = facts.audit, facts.config.data
    columns = (*SPLITS, "excluded")
    yield "## Images"
    yield ""
    yield f"Source: {SOURCES[data.source].format(sha256=data.sha256)}."
    yield ""
    rows = [(escaped(name), *(f"{counts[part]:,}" for part in columns)) for name, counts in found.by_class.items()]
    total = ("**total**", *(f"{found.total(part):,}" for part in columns))
    yield from table(("class", *columns), [*rows[:MOST_ROWS], total])
    yield from unshown(len(rows))
    yield ""
    yield f"- {found.files:,} files were decoded and checked. Of identical images one is used, so none is in two parts."
    if found.groups_in_all:
        yield (
            f"- {found.in_groups:,} images form {found.groups_in_all:,} groups that look alike or belong together; "
            f"{facts.groups_apart:,} of the groups are in more than one part."
        )
    for reason in found.reasons:
        yield f"- Left out: {reason.count:,}, because of: {escaped(reason.name)}."
    if found.reasons_in_all > len(found.reasons):
        yield f"- Left out for {found.reasons_in_all - len(found.reasons):,} more reasons."


def rights(facts: Facts) -> Iterator[str]:
    """The licences of the images, and who made them."""
    named = [facts.credits[path] for path in facts.used if path in facts.credits]
    yield "## Licences and credits"
    yield ""
    yield "The licence of the weights is for their owner to choose; this card names none."
    if facts.config.data.source == "synthetic":
        yield "The images are drawn by the pipeline and free of rights (CC0)."
    elif not named:
        yield "No file with the licences of the images was given, so none is known here."
    else:
        makers = Counter(credits.without_address(credit).strip() for credit in named)
        yield f"The licence file beside the images names {len(named):,} of {len(facts.used):,} images."
        yield ""
        yield "<details><summary>Who made them, with the number of images</summary>"
        yield ""
        shown = sorted(makers.items())[:MOST_CREDITED]
        yield "; ".join(f"{escaped(maker)} ({number:,})" for maker, number in shown) + "."
        if len(makers) > len(shown):
            yield f"And {len(makers) - len(shown):,} more, in the licence file."
        yield ""
        yield "</details>"


def loading(facts: Facts) -> Iterator[str]:
    """Which library loads the folder, and how."""
    model, classes = facts.model.model, len(facts.model.classes)
    yield "## How to load it"
    yield ""
    yield "From the folder that holds this one. It is called `models` here."
    yield ""
    yield "```python"
    if hub.in_timm(model):
        yield 'net = timm.create_model("local-dir:models", pretrained=True).eval()'
    if hub.in_transformers(model):
        yield 'net = transformers.AutoModelForImageClassification.from_pretrained("models").eval()'
    if not model.startswith(TIMM):
        yield f'net = torchvision.models.get_model("{model}", num_classes={classes}).eval()'
        yield 'net.load_state_dict(safetensors.torch.load_file("models/model.safetensors"))'
    if facts.config.evaluate.onnx:
        yield 'session = onnxruntime.InferenceSession("models/model.onnx")  # its metadata has the classes'
    yield "```"
    if not hub.in_timm(model):
        yield ""
        yield "timm and transformers do not have this model, and refuse the folder."
    elif not hub.in_transformers(model):
        yield ""
        yield "transformers does not rename the tensors of this model as timm does, and refuses the folder."


def seeing(facts: Facts) -> Iterator[str]:
    """What the model sees of an image, and what the preprocessing of others changes."""
    view, theirs = facts.model.view, facts.export.get("preprocessing_of_others")
    yield "## What it sees"
    yield ""
    yield (
        f"RGB; the short side is resized to {view.resize} pixels, then the centre of {view.crop} × {view.crop} is cut. "
        f"Mean {list(facts.model.mean)}, standard deviation {list(facts.model.std)} of values from 0 to 1. In training "
        f"and testing the image was first resized to a square of {view.packed_size} pixels."
    )
    if theirs:
        ours = facts.right
        yield (
            f"timm, transformers and torchvision resize the original instead. Then {theirs['changed']:,} of the "
            f"{facts.test_images:,} test images get another class; {theirs['right']:,} are right instead of {ours:,}."
        )
    elif facts.config.evaluate.onnx:
        yield "timm, transformers and torchvision resize the original instead. The effect is not measured: no photos."
    if limit := facts.export.get("probabilities_differ_less_than"):
        yield (
            f"`model.onnx` takes float32 [n, 3, {view.crop}, {view.crop}] from 0 to 255, and normalizes by itself. It "
            f"gives the same class for every test image; its probabilities differ by less than {limit:g}."
        )


def limits(facts: Facts) -> Iterator[str]:
    """What the figures do not say."""
    counts = facts.outcome.counts
    few = [name for name, number in zip(facts.model.classes, counts.sum(1), strict=True) if number < FEW_IMAGES]
    yield "## Limits"
    yield ""
    yield "- It knows these classes only. Every image gets one of them, also an image of something else."
    yield "- The test images have the same source as the training images. Other cameras, places or times can be harder."
    yield f"- It is one run, with the seed {facts.config.train.seed}. Another seed gives another accuracy."
    if few:
        yield f"- Fewer than {FEW_IMAGES} test images, so their figures say little: {in_words([*map(escaped, few)])}."
    if facts.audit.total("val") and facts.model.export == "best":
        yield "- The epoch was chosen by the validation accuracy. The test images had no part in it."


def repeating(facts: Facts) -> Iterator[str]:
    """The files with their hashes, and the commands that give them again."""
    yield "## How to repeat it"
    yield ""
    yield "In a clone of the project that trained it, at the commit whose `dvc.lock` has this model:"
    yield ""
    weights = dict(settings.hashes(facts.config))["the model, model.safetensors"]
    yield "```bash"
    yield f"git log --oneline -S {weights} -- dvc.lock   # the commit"
    yield "make setup && dvc pull   # the locked packages; data and model"
    yield "make verify              # runs every stage again, and compares every byte"
    yield "```"
    yield ""
    yield from table(("file", "SHA-256"), [(f"`{name}`", f"`{digest}`") for name, digest in facts.hashes.items()])
    yield ""
    yield {
        "portable": "Every x86-64 CPU with AVX2 and FMA gives these bytes (`train.arithmetic: portable`).",
        "native": "The same kind of CPU or GPU gives these bytes (`train.arithmetic: native`).",
    }[facts.model.arithmetic]


def decided(facts: Facts) -> Iterator[str]:
    """The settings and packages that decide the bytes."""
    found = settings.settings(facts.config)
    changed, others = [one for one in found if one.is_changed], [one for one in found if not one.is_changed]
    yield "## Settings and packages"
    yield ""
    yield from table(
        ("setting", "value", "default"), [(f"`{one.name}`", f"`{one.value}`", f"`{one.default}`") for one in changed]
    )
    yield ""
    yield f"<details><summary>{len(others)} settings with their default values, and the packages</summary>"
    yield ""
    yield from table(("setting", "value"), [(f"`{one.name}`", f"`{one.value}`") for one in others])
    yield ""
    yield from table(("package", "version"), settings.packages())
    yield ""
    yield "</details>"


def share_interval(right: int, number: int) -> str:
    """The 95 % interval of a share in words."""
    return "{:.3f} to {:.3f}".format(*metrics.wilson(right, number)) if number else "no image"
