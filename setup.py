"""The packages: all below perfdoctor, and the rules, which lie beside it in `analyzers`.."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["perfdoctor", "perfdoctor.*"], exclude=["perfdoctor.analyzers"]),
        "perfdoctor.analyzers",
    ],
    package_dir={"perfdoctor.analyzers": "analyzers"},
)
