"""The page of `dvc plots show`, with Vega inside: DVC's own page loads it from the network, and is blank without one.

    python -m pipeline.reporting.plots_page      writes it, and names it in .dvc/config.local

`make setup` and `make demo` do so. Vega comes from the locked package vl-convert. Git has neither file: DVC would end
with an error if a committed setting named a page that is not there.

vl-convert has 84 MB. It is kept because `dvc plots diff` draws the curves, the confusion and the calibration of any two
commits or experiments into one chart. reports/index.html has those of one run, and `perennial compare` has figures.
"""

import sys
from importlib import metadata
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import exit_status
from pipeline.versioning import programs

PAGE = Path(".dvc/plots/page.html")
VEGA_LITE = "5.21"  # DVC's templates are for version 5
HTML = """<!DOCTYPE html>
<html lang="en">
<!-- {version} -->
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width">
  {refresh_tag}
  <title>Plots</title>
  <style>
    body {{ display: flex; flex-wrap: wrap; gap: 2rem; margin: 2rem; font-family: sans-serif; }}
  </style>
  <script>{bundle}</script>
</head>
<body>
{plot_divs}
</body>
</html>
"""


def version() -> str:
    """The version of what is in the page, in its first lines."""
    return f"vl-convert {metadata.version('vl-convert-python')}, Vega-Lite {VEGA_LITE}"


def text() -> str:
    """The page. DVC replaces `{plot_divs}` and `{refresh_tag}`."""
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE).replace("</script", "<\\/script")
    return HTML.format(version=version(), bundle=bundle, plot_divs="{plot_divs}", refresh_tag="{refresh_tag}")


def ensure() -> None:
    """Write the page, and name it in DVC's local settings, unless that is done. It takes some seconds."""
    if PAGE.is_file() and version() in PAGE.read_text(encoding="utf-8")[:200]:
        return
    print(f"plots_page: writing {PAGE}, with which dvc plots show needs no network")
    files.write_text(PAGE, text())
    programs.dvc("config", "--local", "plots.html_template", PAGE.relative_to(".dvc").as_posix())


def main() -> int:
    def work() -> int:
        ensure()
        return 0

    return exit_status("plots_page", work)


if __name__ == "__main__":
    sys.exit(main())
