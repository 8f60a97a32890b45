"""The recorder that lives in the user's process: standard library and torch only, and it raises no error into it.

::

    Hooks ---> Recorder ---> StepDetector    where one step ends
                   |-------> WindowPlan      which window a step belongs to
                   |-------> WindowProfiler  one recorded window, and whether the user's profiler runs
                   |-------> PhaseRanges     the phases of a step, for NVTX and for the trace
                   |-------> RankFolder      steps.jsonl, facts.json, the traces
                   `-------> Probes          what is worth knowing besides the trace, a probe for each thing

    ExitHandlers ---> Recorder.finish        however the process ends

A recorded program loads the package by its path; `perfdoctor.capture.session` imports it as usual. All imports inside
the package are relative, so that both work.
"""
