"""The recorder that lives in the user's process: standard library and torch only, and no error ever leaves it.

::

    hooks ---> Recorder ---> StepDetector   where one step ends
                   |-------> Plan           which window a step belongs to
                   |-------> WindowProfiler one recorded window, and the user's own profiler
                   |-------> RankFolder     steps.jsonl, facts.json
                   `-------> facts          what is worth knowing besides the trace

The package is loaded by path in a recorded program and imported ordinarily by `perfdoctor.capture.session`; all
imports inside it are relative so that both work.
"""
