"""From dumps, stacks and processes to one sentence: which rank holds the others up, where, and how. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.run_watch.hang import Hang, HangCollective, HangKind
from perfdoctor.run_watch.job_calls import JobCalls, Mismatch
from perfdoctor.run_watch.rank_state import (
    DISTRIBUTED_FOLDER,
    FETCH_FILE,
    LOADER_FILE,
    ProcessState,
    ProcessStates,
    RankAnswer,
    ThreadState,
    find_user_line,
)
from perfdoctor.trace.flight_recorder import Call, Dump
from perfdoctor.units import format_ranges

# Which of several ranks at fault is named: what has ended does not come back by itself.
_WORST_FIRST: tuple[HangKind, ...] = ("dead", "blocked", "missing", "slow", "unknown")
_TYPES: Mapping[str, str] = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
_PLURALS: Mapping[str, str] = {"has": "have", "is": "are", "was": "were", "does": "do"}
_BLOCKING_CALLS: Mapping[str, str] = {
    "lock": "waits for a lock",
    "file_lock": "waits for the lock of a file",
    "read": "waits to read",
    "write": "waits to write",
    "open": "waits to open a file",
    "receive": "waits for data from a connection",
    "poll": "waits for data from a connection or a pipe",
    "wait_child": "waits for a child process",
}


class _Fault(NamedTuple):
    """Why a rank holds the others up, as the rest of a sentence that begins with the rank."""

    kind: HangKind
    why: str
    location: SourceLocation | None = None


class HangInputs(NamedTuple):
    """All that is known of the ranks of a job.

    Attributes:
        dumps: The flight recorder by rank.
        answers: What a thread in each process says.
        processes: What the system says.
        moving: Ranks whose calls are too young to be called waiting.
    """

    dumps: Mapping[int, Dump]
    answers: Mapping[int, RankAnswer]
    processes: ProcessStates
    moving: frozenset[int] = frozenset()


def judge_hang(inputs: HangInputs) -> Hang | None:
    """The hang of a job; None where every rank moves, or none waits."""
    known = {*inputs.answers, *(int(rank) for rank in inputs.processes.ranks if rank.isdigit())}
    size = max([inputs.processes.world_size or 0, *(each.world_size or 0 for each in inputs.answers.values())])
    moving = {rank for rank, answer in inputs.answers.items() if answer.calls_made} | inputs.moving
    calls = JobCalls(inputs.dumps, inputs.answers, known | set(range(size)), moving)
    if not calls.waiting:
        return _judge_stacks(calls.ranks, inputs)
    mismatch = calls.find_mismatch()
    if mismatch is not None:
        return _describe_mismatch(calls, mismatch)
    at_fault = _find_ranks_at_fault(calls)
    if at_fault:
        return _describe_ranks_at_fault(calls, at_fault, inputs)
    return _describe_no_fault(calls)


def _find_ranks_at_fault(calls: JobCalls) -> list[int]:
    """The ranks that others wait for, over as many ranks in between as there are, and that wait for none themselves."""
    awaited = {rank: calls.peers_awaited(rank) for rank in calls.waiting}
    found = {rank for rank, peers in awaited.items() if not peers and calls.is_alone(rank)}
    found |= {peer for peers in awaited.values() for peer in peers if peer not in calls.waiting}
    return sorted(found)


def _describe_ranks_at_fault(calls: JobCalls, at_fault: Sequence[int], inputs: HangInputs) -> Hang:
    faults = {rank: _judge_rank(calls, rank, inputs) for rank in at_fault}
    kind = min((fault.kind for fault in faults.values()), key=_WORST_FIRST.index)
    ranks = tuple(rank for rank, fault in faults.items() if fault.kind == kind)
    first = faults[ranks[0]]
    waiting = _call_awaiting(calls, ranks)
    why = first.why
    if len({fault.why for rank, fault in faults.items() if rank in ranks}) > 1:
        why = "; ".join(f"rank {rank} {faults[rank].why}" for rank in ranks)
        subject = ""
    else:
        subject, why = f"{name_ranks(ranks)} ", _fit_verb(why, len(ranks))
    went_on = inputs.processes.went_on_s
    if waiting is None:  # its own GPU
        call = calls.waiting[ranks[0]]
        return Hang(kind, ranks, _collective_of(calls, ranks[0], ranks), _line_of(call), _sentence(f"{subject}{why}"))
    collective, call = waiting
    others = f"{name_ranks(collective.waiting)} wait{'s' * (len(collective.waiting) == 1)}"
    where = f"{_name_call(collective)}{_at(_line_of(call))}"
    text = f"{subject}{why}: {others} for {'it' if len(ranks) == 1 else 'them'} in {where}"
    if went_on is not None:
        kind, text = "slow", f"{text}; it went on after {went_on:.0f} s"
    return Hang(kind, ranks, collective, first.location or _line_of(call), _sentence(text))


def _call_awaiting(calls: JobCalls, ranks: Sequence[int]) -> tuple[HangCollective, Call] | None:
    """The call in which most ranks wait for these, of those that wait for one of them directly."""
    found: dict[tuple[object, ...], list[int]] = {}
    for rank, call in calls.waiting.items():
        if rank not in ranks and set(calls.peers_awaited(rank)) & set(ranks):
            key = calls.key_of(rank, call)
            found.setdefault((key, call.name if call.is_p2p else "", call.number), []).append(rank)
    if not found:
        return None
    waiting = max(found.values(), key=lambda each: (not calls.waiting[each[0]].is_p2p, len(each)))
    return _collective_of(calls, waiting[0], waiting), calls.waiting[waiting[0]]


def _judge_rank(calls: JobCalls, rank: int, inputs: HangInputs) -> _Fault:
    """Why a rank has not come to a call, or why its call does not end."""
    if rank in calls.waiting:
        call = calls.waiting[rank]
        if call.backend == "gloo":
            return _Fault("unknown", f"waits in {_bare_name(call)}, which all others of its group have ended")
        return _Fault(
            "dead", f"has a GPU that ends nothing any more, since {_bare_name(call)}, which all others have ended"
        )
    state = inputs.processes.ranks.get(str(rank), ProcessState())
    fault = _judge_state(state, inputs.answers.get(rank, RankAnswer()), inputs.processes.workers.get(str(rank), ()))
    if fault is not None:
        return fault
    if rank not in inputs.dumps:
        return _Fault("missing", "has no dump here, and may have died")
    return _Fault("missing", "has not come, and nothing is on its way there; no stack says where it is")


def _judge_state(state: ProcessState, answer: RankAnswer, workers: Sequence[ProcessState]) -> _Fault | None:
    """What a process does that is waited for; None where neither the system nor a stack says it."""
    main = next((thread for thread in answer.threads if thread.is_main), state.thread)
    place, line = main.location, main.location
    dead = _judge_end(state, answer, main)
    if dead is not None:
        return dead
    if state.state == "stopped":
        return _Fault("blocked", f"is stopped by a signal or a debugger{_in(place)}", place)
    if main.is_in(LOADER_FILE):
        return _judge_loader(state, main, workers)
    if state.answered is False and state.state == "running":
        why = "holds the interpreter's lock (GIL), so that no other thread runs"
        return _Fault("blocked", f"{why}{_in(place)}", place)
    above = main.frames_above_user()
    if any(DISTRIBUTED_FOLDER in file for file in above):
        function = next((each.function for each in main.frames if each.file and DISTRIBUTED_FOLDER in each.file), "")
        return _Fault("missing", f"is in another branch, and waits in {function}{_in(place)}", place)
    waits = _judge_call(state, line)
    if waits is not None:
        return waits
    if line is not None:
        return _Fault("missing", f"has not come: it is{_in(line)}", line)
    return None


def _judge_end(state: ProcessState, answer: RankAnswer, main: ThreadState) -> _Fault | None:
    """That a process, or its main thread, has ended; None where it runs."""
    error = SourceLocation(answer.error.file, answer.error.line, answer.error.function) if answer.error.file else None
    raised = f" by {answer.error_type}{_in(error)}" if answer.error_type else ""
    if state.state in ("ended", "gone"):
        if state.signal is not None:
            return _Fault("dead", f"was killed by {_name_signal(state.signal)}", error)
        if state.exit_code or raised:
            return _Fault(
                "dead", f"has ended{raised}" + f" with exit code {state.exit_code}" * bool(state.exit_code), error
            )
        by_itself = (
            " in the ordinary way, with fewer steps or collectives than the others" if state.ended_by_itself else ""
        )
        return _Fault("dead", f"has ended{by_itself}", error)
    # No line of the user's is left on its stack: Python waits for other threads there.
    if raised and (main.location is None or main.location.is_in_library):
        return _Fault("dead", f"has ended its main thread{raised}, and other threads keep the process alive", error)
    return None


def _judge_loader(state: ProcessState, main: ThreadState, workers: Sequence[ProcessState]) -> _Fault:
    """What keeps a loader: a worker, or the data set where the program loads by itself."""
    killed = next((each.signal for each in workers if each.signal is not None), None)
    if killed is not None:
        by = f" by {_name_signal(killed)}"
        return _Fault(
            "blocked", f"waits in its loader for a worker that was killed{by}{_in(main.location)}", main.location
        )
    worker = next((each for each in workers if each.thread.is_in(FETCH_FILE)), None)
    if worker is not None:
        line = worker.thread.location
        what = _judge_call(worker, line)
        does = what.why if what is not None else f"is{_in(line)}"
        return _Fault("blocked", f"waits in its loader for a worker, which {does}", line)
    line = main.location
    what = _judge_call(state, line)
    does = f" and {what.why}" if what is not None and what.kind == "blocked" else _in(line)
    return _Fault("blocked", f"is in its loader{does}", line)


def _judge_call(state: ProcessState, line: SourceLocation | None) -> _Fault | None:
    """What the main thread of a process does by its system call; None where the system does not tell."""
    if state.call == "sleep":
        return _Fault("slow", f"sleeps{_in(line)}", line)
    if state.is_moving:
        return _Fault("slow", f"is behind and still works{_in(line)}", line)
    if state.call is not None and state.call in _BLOCKING_CALLS and state.is_moving is False:
        file = f" {state.file}" if state.file else ""
        return _Fault("blocked", f"{_BLOCKING_CALLS[state.call]}{file}{_in(line)}", line)
    return None


def _judge_stacks(ranks: Sequence[int], inputs: HangInputs) -> Hang | None:
    """The hang of a job whose flight recorders show no waiting rank: of one process, or of a torch without dumps."""
    waiting, faults = [], dict[int, _Fault]()
    for rank in ranks:
        state, answer = inputs.processes.ranks.get(str(rank)), inputs.answers.get(rank, RankAnswer())
        if state is None or state.idle_s is None:
            continue
        main = next((thread for thread in answer.threads if thread.is_main), state.thread)
        if rank not in inputs.dumps and any(DISTRIBUTED_FOLDER in file for file in main.frames_above_user()):
            waiting.append(rank)
            continue
        fault = None if answer.calls_made else _judge_state(state, answer, inputs.processes.workers.get(str(rank), ()))
        if fault is not None and not state.is_moving and not state.ended_by_itself:
            faults[rank] = fault
    # A process by itself that runs, or ends, is no hang; it is one where others wait for it.
    faults = {rank: fault for rank, fault in faults.items() if waiting or fault.kind in ("blocked", "slow")}
    if not faults:
        return None
    kind = min((fault.kind for fault in faults.values()), key=_WORST_FIRST.index)
    at_fault = tuple(rank for rank, fault in faults.items() if fault.kind == kind)
    first = faults[at_fault[0]]
    idle_s = max(inputs.processes.ranks[str(rank)].idle_s or 0 for rank in at_fault)
    subject = name_ranks(at_fault) if len(ranks) > 1 else "the program"
    why = _fit_verb(first.why, len(at_fault))
    others = f": {name_ranks(waiting)} wait{'s' * (len(waiting) == 1)} for it" if waiting else ""
    text = f"{subject} {why}, with no step for {idle_s:.0f} s{others}"
    if inputs.processes.went_on_s is not None:
        kind, text = "slow", f"{text}; it went on after {inputs.processes.went_on_s:.0f} s"
    return Hang(kind, at_fault, None, first.location, _sentence(text))


def _describe_mismatch(calls: JobCalls, mismatch: Mismatch) -> Hang:
    odd, others = mismatch
    rank, other = min(odd), min(others)
    is_tie = len(odd) == len(others)
    own, common = odd[rank], others[other]
    collective = _collective_of(calls, other, sorted(others), common)
    what = _describe_form(own, common)
    ranks = tuple(sorted({*odd, *others} if is_tie else odd))
    text = (
        f"{name_ranks(sorted(odd))} call{'s' * (len(odd) == 1)} {what[0]} as number {own.number} of {collective.group}"
        f"{_at(_line_of(own))}, where {name_ranks(sorted(others))} call{'s' * (len(others) == 1)} {what[1]}"
        f"{_at(_line_of(common))}: all ranks of a group must call the same collectives in the same order, with the "
        "same sizes and types"
    )
    return Hang("mismatch", ranks, collective, _line_of(own) or _line_of(common), _sentence(text))


def _describe_form(own: Call, common: Call) -> tuple[str, str]:
    """The two calls by what tells them apart."""
    if own.name != common.name:
        return own.name, common.name
    return tuple(f"{each.name} of {_name_tensor(each)}" for each in (own, common))  # type: ignore[return-value]


def _describe_no_fault(calls: JobCalls) -> Hang:
    """All waiting ranks wait for each other, in one call or in several."""
    rank = min(calls.waiting)
    collective = _collective_of(calls, rank, sorted(calls.waiting))
    line = _line_of(calls.waiting[rank])
    first = calls.peers_awaited(rank)
    if first:
        other = first[0]
        ranks = tuple(sorted(calls.waiting))
        theirs = _collective_of(calls, other, [other])
        text = (
            f"rank {rank} waits in {_name_call(collective)}{_at(line)}, and rank {other} in {_name_call(theirs)}"
            f"{_at(_line_of(calls.waiting[other]))}: each waits for the other, because they call the collectives of "
            "two groups in another order"
        )
        return Hang("mismatch", ranks, _collective_of(calls, rank, [rank]), line, _sentence(text))
    ranks = tuple(sorted(calls.waiting))
    text = (
        f"{name_ranks(ranks)} have all entered {_name_call(collective)}{_at(line)}, with the same sizes and types, and "
        "it does not end: look at the network, and at the GPUs"
    )
    return Hang("unknown", ranks, collective, line, _sentence(text))


def _collective_of(calls: JobCalls, rank: int, waiting: Iterable[int], call: Call | None = None) -> HangCollective:
    call = call or calls.waiting[rank]
    key = calls.key_of(rank, call)
    types = tuple(_TYPES.get(each, each) for each in call.input_types)
    return HangCollective(
        call.name, key.description or call.group, call.number, call.input_sizes, types, tuple(waiting)
    )


def _line_of(call: Call) -> SourceLocation | None:
    return find_user_line([SourceLocation(each.file, each.line, each.function) for each in call.frames])


def _name_call(collective: HangCollective) -> str:
    return f"{collective.name} (number {collective.number} of {collective.group})"


def _bare_name(call: Call) -> str:
    return f"{call.name} number {call.number}"


def _name_tensor(call: Call) -> str:
    types = [_TYPES.get(each, each) for each in call.input_types]
    sizes = ["x".join(map(str, each)) or "1" for each in call.input_sizes]
    return ", ".join(f"{size} {kind}" for size, kind in zip(sizes, types, strict=False)) or "no tensors"


def _at(line: SourceLocation | None) -> str:
    return "" if line is None else f" at {line.short}"


def _in(line: SourceLocation | None) -> str:
    if line is None:
        return ""
    return f" at {line.short}" + (f" ({line.function})" if line.function and line.function != "<module>" else "")


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks for a sentence: rank 3; ranks 0, 1 and 4; ranks 0-7 and 12."""
    first, comma, last = format_ranges(ranks).rpartition(", ")
    return f"rank{'s' * (len(ranks) != 1)} {first}{' and ' * bool(comma)}{last}"


def _fit_verb(why: str, count: int) -> str:
    """The rest of a sentence after one rank, or after several."""
    verb, blank, rest = why.partition(" ")
    return why if count == 1 else f"{_PLURALS.get(verb, verb.removesuffix('s'))}{blank}{rest}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
