"""The generated parts of the README in its two languages: every phrase, and its Chinese.

A part is made once, from one set of figures, by code that says its phrases with `english` or `chinese`.
"""

from collections.abc import Callable

Say = Callable[..., str]  # a phrase, and the values of its places → the phrase in one language

PHRASES = {
    ", ": "，",
    # the figures (figures.py)
    "what": "项目",
    "here": "本项目",
    "for comparison, in the same run": "同一次运行中的对照",
    "Not measured yet: `make bench`.": "尚未测量：`make bench`。",
    "{cpu}, {cores} cores, torch {torch}, commit {commit}": "{cpu}，{cores} 核，torch {torch}，提交 {commit}",
    "{cpu}, {cores} cores, {count} × {gpu}, torch {torch}, commit {commit}": (
        "{cpu}，{cores} 核，{count} × {gpu}，torch {torch}，提交 {commit}"
    ),
    "CPU time to load one photo at {side} pixels": "以 {side} 像素加载一张照片的 CPU 时间",
    "tutorial": "教程写法",
    "{name} {ms:.2f} ms ({ratio:.1f} times)": "{name} {ms:.2f} ms（{ratio:.1f} 倍）",
    "`prepare` (decodes once, with Pillow), on all cores": "`prepare`（用 Pillow，只解码一次），使用全部核心",
    "{rate:,.0f} photos/s": "每秒 {rate:,.0f} 张照片",
    "decode and resize alone: {others}": "仅解码和缩放：{others}",
    "{name} {rate:,.0f} (ours: {share:.2f} of it)": "{name} {rate:,.0f}（本项目是它的 {share:.2f} 倍）",
    "{name}: {share:.3f}": "{name}：{share:.3f}",
    "training speed, relative to the same step on one fixed batch": "训练速度，与反复训练同一个固定批次相比",
    "1: it never waits for images": "1：从不等待图片",
    "what `deterministic: true` costs": "`deterministic: true` 的代价",
    "{name}: {percent:.1f} %": "{name}：{percent:.1f} %",
    "peak memory of `{name}` at 10 times the data": "数据量增至 10 倍时 `{name}` 的内存峰值",
    "{times:.2f} times": "{times:.2f} 倍",
    "cost per added photo: from 3 to 10 times the data, relative to from 1 to 3 times": (
        "每多一张照片的耗时：数据量从 3 倍增至 10 倍时，与从 1 倍增至 3 倍时相比"
    ),
    "1: linear": "1：线性",
    "`dvc repro` from a local archive ({photos}; epochs: {epochs})": (
        "`dvc repro`，数据来自本地压缩包（{photos}；轮数：{epochs}）"
    ),
    "{total:.1f} s; first step after {first:.1f} s": "{total:.1f} s；{first:.1f} s 后完成第一步",
    "again, with nothing changed: {again:.1f} s; `dvc status`: {status:.1f} s": (
        "没有改动，再运行一次：{again:.1f} s；`dvc status`：{status:.1f} s"
    ),
    "time to validation accuracy {target} ({photos}; {model}, {epochs} epochs)": (
        "达到验证准确率 {target} 所需的时间（{photos}；{model}，{epochs} 轮）"
    ),
    "{step:.1f} s from the first step, {start:.1f} s from the start": (
        "从第一步算起 {step:.1f} s，从启动算起 {start:.1f} s"
    ),
    "median; {reached} of {seeds} seeds reached it": "中位数；{seeds} 个随机种子中有 {reached} 个达到",
    "seconds per epoch, {devices} devices": "每轮秒数，{devices} 个设备",
    "{parallel} by {launcher} {seconds:.1f}": "{parallel}（{launcher}）{seconds:.1f}",
    # the results (results.py)
    "data": "数据",
    "images": "图片数",
    "trained from scratch": "从头训练",
    "test accuracy (95 % interval)": "测试准确率（95 % 置信区间）",
    "`make demo`: drawn flowers": "`make demo`：程序绘制的花",
    "flower_photos, one fifth": "flower_photos，五分之一",
    "flower_photos, all": "flower_photos，全部",
    "flower_photos, all, tested in 5 folds (`make folds RECIPE=long`)": (
        "flower_photos，全部，分 5 折测试（`make folds RECIPE=long`）"
    ),
    "{model}, {crop} pixels, {epochs} epochs": "{model}，{crop} 像素，{epochs} 轮",
    "{accuracy:.3f} ({low:.3f} to {high:.3f}, {images} images)": (
        "{accuracy:.3f}（{low:.3f} 至 {high:.3f}，{images} 张图片）"
    ),
    # the ways of running (tests/test_ways.py)
    "`train.precision` on the CPU": "CPU 上的 `train.precision`",
    "on GPUs": "GPU 上",
    "on GPUs with Apex": "装有 Apex 的 GPU 上",
}


def english(phrase: str, **values: object) -> str:
    """The phrase with its values. Raises KeyError if it has no Chinese."""
    if phrase not in PHRASES:
        raise KeyError(phrase)
    return phrase.format(**values)


def chinese(phrase: str, **values: object) -> str:
    """The Chinese of the phrase with its values. Raises KeyError if there is none."""
    return PHRASES[phrase].format(**values)


READMES: dict[str, Say] = {"README.md": english, "README.zh.md": chinese}
