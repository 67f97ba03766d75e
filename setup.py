"""Take along what lies beside the packages. Everything else stands in ``pyproject.toml``."""

from pathlib import Path
from shutil import copy2, copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
LEFT_OUT = ignore_patterns("smol")  # of the assets: what recipes.smol makes a pair of, in a clone


class BuildWithShipped(build_py):
    """Put the page's program and the assets into the package, where ``specllava.files`` looks for them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # the checkout itself is what is imported
        target = Path(self.build_lib) / "specllava" / "shipped"
        copytree(ROOT / "assets", target / "assets", ignore=LEFT_OUT, dirs_exist_ok=True)
        copy2(ROOT / "app.py", target)


setup(cmdclass={"build_py": BuildWithShipped})
