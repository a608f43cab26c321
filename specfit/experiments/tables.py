"""The sections of an experiment's report, each a table of the paper beside the published numbers it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specfit.answers import spec_bench_speedup
from specfit.bootstrap import paired_speedup
from specfit.calibrate import Calibration
from specfit.experiments.document import Grid, Section
from specfit.experiments.published import COLUMNS, FIGURE_4_COLUMNS, beside_paper, exact_routes, figure_4, paper_name
from specfit.metrics import copy_ms, decompose, shared_requests, speedup
from specfit.objective import CostModel
from specfit.paper import COEFFICIENTS
from specfit.records import RunRecord
from specfit.report import BASELINE, alike
from specfit.workloads import CALIBRATION_IDS

OWN_TABLE = "mean of the requests' own speed-ups"  # a note that is a column of the speed-ups here
Rows = list[tuple[RunRecord, dict[str, Any]]]  # runs with their rows of `summary_rows` and a "label"


TUNED_TO = {"unions": "to E[F | k] of", "price_per_ms": "to a price of time, in tokens per ms, of"}


def methods_table(name: str, rows: Rows, workload: Mapping[str, Any], *, protocol: str) -> Section:
    """Tables 2 to 4. workload: as in experiment.json; protocol: of the calibration."""
    table, notes = beside_paper(rows, workload, protocol)
    known = paper_name(workload)
    if known is not None and not workload.get("paper"):
        notes.append(f"{name} stands in for the paper's {known}: questions of the same kind, for a small model")
    if known is None:
        notes.append("the paper has no such workload, so no published numbers stand beside these")
    if {int(ident) for ident in workload.get("questions", ()) if str(ident).isdigit()} & set(CALIBRATION_IDS):
        notes.append("questions 401-403, from which the paper's calibration states come, are among those decoded here")
    for run, row in rows:
        for what, known in run.settings.get("tuned", {}).items():  # by specfit.experiments.tuning
            values = ", ".join(f"{value:.4g}" for value in (known if isinstance(known, list) else [known]))
            notes.append(
                f"{row['label']}, {row['cache']}: tuned beforehand on other prompts, {TUNED_TO[what]} {values}"
            )
    told = [(row, note) for _, row in rows for note in row["notes"] if not note.startswith(OWN_TABLE)]
    notes += [f"{row['label']}, {row['cache']}: {note}" for row, note in told]
    return Section(f"{name}: methods", grid=Grid(f"{name}_methods", COLUMNS, tuple(table)), notes=tuple(notes))


def speedups(name: str, rows: Rows) -> Section:
    """Every method over AR, and over EAGLE-3, with the same cache: three ratios, and how sure the first is."""
    lines, notes = [], []
    for run, row in rows:
        for other, _ in rows:
            if other is run or other.method not in (BASELINE, "eagle3") or run.method == BASELINE:
                continue
            if not alike(run, other):
                continue
            line: dict[str, Any] = {"label": row["label"], "over": other.method, "cache": row["cache"]}
            gain = speedup(run, other)
            line |= {"questions": gain.requests, "sums": gain.ratio_of_sums, "means_of_ratios": gain.mean_of_ratios}
            line["means"] = spec_bench_speedup(run, other)
            try:
                interval = paired_speedup(run, other)
                line |= {"low": interval.low, "high": interval.high}
            except ValueError as error:
                notes.append(f"{row['label']} over {other.method}, {row['cache']}: no interval, because {error}")
            line["equal"] = sum(a.output_tokens == b.output_tokens for a, b in shared_requests(run, other))
            line["flag"] = "SLOWER THAN AR" if other.method == BASELINE and gain.slower else ""
            lines.append(line)
    columns = (
        ("label", "method", "{}"),
        ("over", "over", "{}"),
        ("cache", "cache", "{}"),
        ("sums", "ratio of sums (paper)", "{:.3f}"),
        ("low", "95% from", "{:.3f}"),
        ("high", "to", "{:.3f}"),
        ("means", "ratio of means (Spec-Bench)", "{:.3f}"),
        ("means_of_ratios", "mean of ratios", "{:.3f}"),
        ("questions", "requests", "{}"),
        ("equal", "same text", "{}"),
        ("flag", "", "{}"),
    )
    notes += [
        "ratio of sums: decode tokens per second over decode tokens per second, all requests together (Eq. 10); ratio "
        "of means: as Spec-Bench's speed.py, each question's tokens per second with prefill, averaged, then divided "
        "(it counts the baseline's tokens by tokenizing its texts again, so its own figure differs a little); mean of "
        "ratios: each request's own decode speed-up, averaged. The three are different numbers",
        "the interval is a paired bootstrap over the requests: it speaks of other requests of this kind, "
        + (
            "and since methods took turns, slow drift of the machine is in both sides of each pair"
            if any(run.settings.get("order") == "interleaved" for run, _ in rows)
            else 'not of a machine whose speed drifts from one method to the next (order = "interleaved" pairs those)'
        ),
    ]
    return Section(f"{name}: speed-ups", grid=Grid(f"{name}_speedups", columns, tuple(lines)), notes=tuple(notes))


def equation_8(name: str, rows: Rows) -> list[Section]:
    """What of SpecFit's gain over EAGLE-3 comes from the fixed time of a cycle, and what from fewer copies."""
    lines, notes = [], []
    for run, row in rows:
        for other, _ in rows:
            if run.method in (BASELINE, "eagle3") or other.method != "eagle3" or not alike(run, other):
                continue
            tau, how = copy_ms([run, other])
            line: dict[str, Any] = {"label": row["label"], "over": "eagle3", "cache": row["cache"], "tau": tau}
            notes.append(f"tau, {row['cache']}: {how}")
            if tau is not None:
                parts = decompose(run, other, transfer_ms=tau)
                line |= {
                    "ratio": parts.ratio, "fixed": parts.fixed_ratio, "copies": parts.transfer_ratio, "w": parts.weight
                }  # fmt: skip
                notes += [f"{row['label']}, {row['cache']}: {parts.reason}"] if parts.reason else []
            lines.append(line)
    if not lines:
        return []
    columns = (
        ("label", "method", "{}"),
        ("over", "over", "{}"),
        ("cache", "cache", "{}"),
        ("ratio", "(R/T)/(R'/T')", "{:.3f}"),
        ("fixed", "(R/B)/(R'/B')", "{:.3f}"),
        ("copies", "(R/H)/(R'/H')", "{:.3f}"),
        ("w", "w", "{:.3f}"),
        ("tau", "tau, ms", "{:.3f}"),
    )
    notes.append(
        "Equation 8 with T = B + tau H, R tokens, H copies: the ratio is (1 - w) of the factor per fixed time and w of "
        "the factor per copy"
    )
    notes = list(dict.fromkeys(notes))
    return [Section(f"{name}: Equation 8", grid=Grid(f"{name}_equation_8", columns, tuple(lines)), notes=tuple(notes))]


def cache_pressure(name: str, rows: Rows) -> Section:
    """Figure 4's numbers."""
    grid = Grid(f"{name}_cache_pressure", FIGURE_4_COLUMNS, tuple(figure_4(rows)))
    note = (
        "the paper's columns are its summarization workload on the A100, where the share of experts in slots is its own"
    )
    return Section(f"{name}: cache pressure (Figure 4)", grid=grid, notes=(note,))


def selection_theory(groups: Mapping[str, Rows]) -> list[Section]:
    """Table 5 of every SpecFit run with the atlas's own routes."""
    from specfit.theory.table_5 import table_5  # here: it loads the solvers

    sections = []
    for name, rows in groups.items():
        for run, row in rows:
            if run.method != "specfit" or not exact_routes(run) or not run.settings.get("cost"):
                continue
            seed = f", seed {run.settings['seed']}" if run.settings.get("seed") else ""
            title = f"{name}, {row['cache']}{seed}: selection theory (Table 5)"
            try:
                found = table_5(run, CostModel.from_dict(dict(run.settings["cost"])))
            except ValueError as error:
                sections.append(Section(title, (f"Not computed: {error}.",)))
                continue
            lines = [
                {
                    "quantity": line.quantity,
                    **{
                        key: " / ".join(f"{value:,.{line.digits}f}" for value in getattr(line, key)) or None
                        for key in ("ours", "summarization", "gsm8k")
                    },
                }
                for line in found
            ]
            columns = (
                ("quantity", "", "{}"),
                ("ours", "this run", "{}"),
                ("summarization", "paper, summarization", "{}"),
                ("gsm8k", "paper, GSM8K", "{}"),
            )
            slug = "".join(char if char.isalnum() else "_" for char in f"{name}_{row['cache']}{seed}".lower())
            notes = tuple(line.note for line in found if line.note)
            sections.append(Section(title, grid=Grid(f"{slug}_table_5", columns, tuple(lines)), notes=notes))
    return sections


def coefficients(calibrations: Mapping[str, Calibration]) -> Section:
    """The cost coefficients with the fit's quality, and the paper's."""
    lines: list[dict[str, Any]] = []
    notes = []
    for cache, fit in calibrations.items():
        lines.append(
            {
                "cache": cache,
                "source": f"this machine, {fit.protocol}",
                "beta": fit.cost.expert_ms,
                "gamma": fit.cost.level_ms,
                "b": " ".join(f"{b:.2f}" for b in fit.cost.intercepts_ms),
                "r2": fit.r2,
                "rms_ms": fit.rms_ms,
                "worst_ms": fit.worst_ms,
                "condition": fit.condition,
                "probes": fit.probes,
            }
        )
        notes.append(f"{cache}: fitted {fit.date} on {', '.join(fit.prompts) or 'unnamed prompts'}")
        notes += [f"{cache}: WARNING: {warning}" for warning in fit.warnings]
    lines += [
        {
            "cache": paper.cache,
            "source": f"paper, {paper.machine}",
            "beta": paper.expert_ms,
            "b": " ".join(f"{b:.2f}" for b in paper.intercepts_ms),
        }
        for paper in COEFFICIENTS
    ]
    columns = (
        ("cache", "cache", "{}"),
        ("source", "source", "{}"),
        ("beta", "beta, ms", "{:.4f}"),
        ("gamma", "gamma, ms", "{:.3f}"),
        ("b", "b_0 .. b_K, ms", "{}"),
        ("r2", "R^2", "{:.3f}"),
        ("rms_ms", "rms, ms", "{:.2f}"),
        ("worst_ms", "worst, ms", "{:+.2f}"),
        ("condition", "condition", "{:.0f}"),
        ("probes", "probes", "{}"),
    )
    return Section("Cost coefficients", grid=Grid("coefficients", columns, tuple(lines)), notes=tuple(notes))


def rendered_prompts(groups: Mapping[str, Rows]) -> list[Section]:
    """The first prompt of every workload as the target got it, template and all."""
    sections = []
    for name, rows in groups.items():
        requests = next((run.requests for run, _ in rows if run.requests), ())
        if not requests:
            continue
        first = requests[0]
        lengths = [len(request.prompt_tokens) for request in requests]
        template = first.extra.get("template_hash")
        text = (
            f"Question {first.question_id} as the target got it"
            + (f" (chat template {template}, no system message of ours)" if template else " (plain text, no template)")
            + f"; prompts have {min(lengths)}-{max(lengths)} tokens.",
        )
        notes = tuple(dict.fromkeys(note for request in requests for note in request.extra.get("notes", ())))
        shown = str(first.extra.get("prompt_text", ""))
        shown = shown if len(shown) <= 2000 else f"{shown[:1000]}\n[...]\n{shown[-1000:]}"
        sections.append(Section(f"{name}: a prompt", text, verbatim=shown, notes=notes))
    return sections
