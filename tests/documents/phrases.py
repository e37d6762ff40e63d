"""The README's table of results in two languages: every phrase, and its Chinese.

The table is made once, from one set of figures, by code that says its phrases with `english` or `chinese`.
"""

from collections.abc import Callable

Say = Callable[..., str]  # a phrase, and the values of its places → the phrase in one language

PHRASES = {
    "data": "数据",
    "images": "图片数",
    "model": "模型",
    "test accuracy (95 % interval)": "测试准确率（95 % 置信区间）",
    "made by": "由来",
    "drawn flowers": "程序绘制的花",
    "flower_photos, one fifth, tested in 5 folds": "flower_photos，五分之一，分 5 折测试",
    "flower_photos, all, tested in 5 folds": "flower_photos，全部，分 5 折测试",
    "{model}, {crop} pixels, {epochs} epochs from scratch": "{model}，{crop} 像素，从头训练 {epochs} 轮",
    "`quick`: {model} of ImageNet, its head solved": "`quick`：ImageNet 的 {model}，求解分类层",
    "`good`: {model} of ImageNet, all layers, {epochs} epochs": "`good`：ImageNet 的 {model}，训练所有层 {epochs} 轮",
    "{accuracy:.3f} ({low:.3f} to {high:.3f}, {images} images)": (
        "{accuracy:.3f}（{low:.3f} 至 {high:.3f}，{images} 张图片）"
    ),
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
