"""What is asked of an analysis: one value that travels from the door to every rank, in any process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from typing import TypeAlias

from perfdoctor.analysis.kernels.roof_classes import MIN_ROOF_SHARE
from perfdoctor.errors import UsageError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import find_device
from perfdoctor.gpu.calibration import find_calibration
from perfdoctor.gpu.device_table import read_table, user_devices_path
from perfdoctor.gpu.devices import similar_names
from perfdoctor.report.report import TABLES
from perfdoctor.rules import registry
from perfdoctor.rules.reserved_rules import RESERVED_RULES
from perfdoctor.trace.io.stream import DEFAULT_MAX_TEXT_BYTES

Settings: TypeAlias = Mapping[str, Mapping[str, float]]

ACCOUNT_SETTINGS = "ACCOUNT"
"""The settings of the account, which stand beside those of rules in `Settings`."""
_MAX_NAMED = 8  # rules that are off


@frozen_dataclass
class AnalysisOptions:
    """What users ask for, and what the caller does with the report.

    Attributes:
        select: Rule ids or their beginnings ("PD1"); empty for all rules.
        ignore: Rule ids or their beginnings to leave out.
        settings: Thresholds by rule id, and those of the account.
        device: The device's name, where the trace does not say it.
        rank: The only rank to look at; None for all.
        steps: The steps to look at.
        jobs: Processes of this machine that share the files, 1 for this one; None for as many as are worth starting.
        dask: The address of the scheduler of a cluster that does the work instead.
        breakdown: Whether to break down the steps for a comparison, which takes a tenth of the time of an analysis.
            What is only for an annotated trace is left out then.
        charts: Whether to make what the page draws.
        tables: Which of `TABLES` to make: all of them take a tenth of the time of an analysis, too.
        is_only_rank: Whether the report has no other rank. Then a summary keeps the intervals of account and claims,
            which an annotated trace needs, and leaves out what only comparisons of ranks need.
        read_threads: Threads to read a file with; None for as many as are worth it.
        max_text_bytes: Where reading ends in a trace that is no ordinary file, or compressed, and so may have no end.
        settings_file: The file that `select`, `ignore` or `settings` come from, at least in part; None for no file.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    settings: Settings = field(default_factory=dict)
    device: str | None = None
    rank: int | None = None
    steps: slice = field(default_factory=lambda: slice(None))
    jobs: int | None = None
    dask: str | None = None
    breakdown: bool = False
    charts: bool = False
    tables: Collection[str] = TABLES
    is_only_rank: bool = False
    read_threads: int | None = None
    max_text_bytes: int = DEFAULT_MAX_TEXT_BYTES
    settings_file: str | None = None


def choose_rules(options: AnalysisOptions) -> tuple[registry.ListedRule, ...]:
    """The rules to apply, once all options are known to be right: before a trace is read.

    Raises:
        UsageError: A rule, threshold or device does not exist, the user's file of devices is no table, or `jobs` is
            below 1.
    """
    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"jobs cannot be {options.jobs}: at least one process has to do it; 1 is this one")
    analyzers = registry.list_rules()
    check_settings(options.settings, analyzers)
    chosen = registry.choose_analyzers(analyzers, options.select, options.ignore)
    check_device(options.device)
    return chosen


def describe_settings_file(options: AnalysisOptions) -> str | None:
    """What a file of settings changes, as a sentence, as it may lie in a folder of somebody else; None without one."""
    if options.settings_file is None:
        return None
    analyzers = registry.list_rules()
    chosen = registry.choose_analyzers(analyzers, options.select, options.ignore)
    off = sorted({each.rule for each in analyzers} - {each.rule for each in chosen})
    more = f" and {len(off) - _MAX_NAMED} more" if len(off) > _MAX_NAMED else ""
    changes = [f"{', '.join(off[:_MAX_NAMED])}{more} {'is' if len(off) == 1 else 'are'} off"] if off else []
    changes += [f"{rule}.{name} = {value:g}" for rule, each in options.settings.items() for name, value in each.items()]
    return f"settings of {options.settings_file} count: {'; '.join(changes) or 'nothing is off'}"


def check_settings(settings: Settings, rules: Iterable[registry.ListedRule]) -> None:
    """Check that every rule and threshold in `settings` exists.

    Raises:
        UsageError: One does not exist, or a threshold of the account is out of range.
    """
    min_roof_share_of(settings)
    known = {rule.rule: rule for rule in rules}
    settings = {rule: thresholds for rule, thresholds in settings.items() if rule != ACCOUNT_SETTINGS}
    unknown = sorted(set(settings) - set(known))
    if unknown:
        why_none = RESERVED_RULES.get(unknown[0], "`perfdoctor rules` lists them.")
        raise UsageError(f"settings name the rule '{unknown[0]}', which is not registered. {why_none}")
    for rule, thresholds in settings.items():
        known[rule].load()(thresholds)


def min_roof_share_of(settings: Settings) -> float:
    """`Rank.min_roof_share` by the settings, which have it as {"ACCOUNT": {"min_roof_share": 0.4}}.

    Raises:
        UsageError: The account has no such threshold, or it is no share.
    """
    thresholds = settings.get(ACCOUNT_SETTINGS, {})
    unknown = sorted(set(thresholds) - {"min_roof_share"})
    if unknown:
        raise UsageError(f"the account has no threshold '{unknown[0]}'; it has min_roof_share")
    share = thresholds.get("min_roof_share", MIN_ROOF_SHARE)
    if not 0 <= share <= 1:
        raise UsageError(f"{ACCOUNT_SETTINGS}.min_roof_share is a share from 0 to 1, not {share}")
    return share


def check_device(name: str | None) -> None:
    """Raise UsageError if a device that the user names is not known, or if the user's file of devices is no table."""
    read_table()  # before any rank is read: what fails later costs only that rank
    if name is None or find_device(name) is not None or find_calibration(name) is not None:
        return
    near = " or ".join(f"'{each}'" for each in similar_names(name))
    advice = f"did you mean {near}?" if near else f"add it to {user_devices_path()}"
    raise UsageError(f"the device '{name}' is not in the table of devices; {advice}")
