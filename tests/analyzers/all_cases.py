"""All cases of all rules."""

from __future__ import annotations

import cases_compiling
import cases_copies
import cases_data_parallel
import cases_facts
import cases_host
import cases_idle
import cases_incomplete
import cases_kernels
import cases_links
import cases_loading
import cases_matrix
import cases_memory
import cases_ranks
import cases_steps
import cases_syncs
import cases_updates

from perfdoctor.testing.rule_cases import RuleCase

CASES: list[RuleCase] = [
    *cases_facts.PD001,
    *cases_incomplete.PD002,
    *cases_steps.PD003,
    *cases_idle.PD101,
    *cases_loading.PD101,
    *cases_idle.PD102,
    *cases_syncs.PD102,
    *cases_idle.PD103,
    *cases_idle.PD104,
    *cases_host.PD104,
    *cases_copies.PD105,
    *cases_copies.PD106,
    *cases_idle.PD107,
    *cases_compiling.PD108,
    *cases_kernels.PD201,
    *cases_matrix.PD202,
    *cases_kernels.PD203,
    *cases_matrix.PD204,
    *cases_matrix.PD205,
    *cases_matrix.PD206,
    *cases_matrix.PD207,
    *cases_matrix.PD208,
    *cases_memory.PD301,
    *cases_memory.PD302,
    *cases_updates.PD303,
    *cases_host.PD303,
    *cases_updates.PD304,
    *cases_host.PD304,
    *cases_updates.PD305,
    *cases_memory.PD306,
    *cases_ranks.PD401,
    *cases_ranks.PD402,
    *cases_data_parallel.PD403,
    *cases_links.PD404,
    *cases_data_parallel.PD405,
    *cases_data_parallel.PD406,
    *cases_links.PD407,
    *cases_links.PD408,
]
