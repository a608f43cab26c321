"""The numbers that the paper prints (arXiv 2610.15417v1), for comparison only.

Coefficients belong to one engine on one machine and are fitted (`specfit.calibrate`): nothing here is a default, and
only reports and the workbench read it. A test holds that.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PaperCost:
    """Coefficients of Equation 4, milliseconds (Appendix B)."""

    machine: str
    cache: str  # "48 slots", "32 slots" per layer, or "cleared" before every target forward
    expert_ms: float  # beta
    intercepts_ms: tuple[float, ...]  # b_0 .. b_7


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One line of Table 2, 3 or 4; TPS of Tables 2 and 3 from Figures 2 and 3."""

    method: str  # "ar", "eagle3", "specfit"
    cache: bool
    decode_tps: float
    draft_nodes: float | None  # selected a cycle; None for AR
    committed: float  # tokens a cycle
    cycles: int
    cycle_ms: float
    h2d_per_token: float  # expert copies per output token, prefill included
    speedup: float | None = None  # over AR without the cache; printed in Table 4 only


A100, RTX4090 = "A100 PCIe 40GB", "RTX 4090 24GB"

COEFFICIENTS = (
    PaperCost(A100, "48 slots", 0.210715513, (142.214, 147.532, 150.522, 152.269, 152.743, 163.204, 155.175, 156.068)),
    PaperCost(A100, "cleared", 0.408001022, (122.702, 117.975, 118.338, 116.389, 115.309, 114.770, 113.887, 113.671)),
    PaperCost(
        RTX4090, "32 slots", 0.206037121, (245.640, 293.125, 319.436, 343.284, 367.087, 386.660, 401.359, 416.368)
    ),
    PaperCost(
        RTX4090, "cleared", 0.781593955, (151.724, 158.827, 164.033, 164.883, 169.941, 171.869, 173.418, 175.833)
    ),
)

TABLE_2 = (  # summarization, A100
    PaperRow("ar", False, 4.67, None, 1.00, 9652, 214.2, 400.7),
    PaperRow("eagle3", False, 4.21, 7.00, 2.54, 3823, 600.9, 486.5),
    PaperRow("specfit", False, 5.54, 2.29, 2.08, 4702, 373.6, 347.7),
    PaperRow("ar", True, 6.64, None, 1.00, 9652, 150.6, 49.7),
    PaperRow("eagle3", True, 6.80, 7.00, 2.54, 3823, 371.7, 73.4),
    PaperRow("specfit", True, 8.27, 2.88, 2.21, 4389, 265.8, 57.2),
)

TABLE_3 = (  # GSM8K, A100
    PaperRow("ar", False, 4.70, None, 1.00, 17791, 212.5, 398.2),
    PaperRow("eagle3", False, 6.26, 7.00, 4.35, 4097, 692.3, 345.7),
    PaperRow("specfit", False, 7.08, 4.27, 3.81, 4662, 536.7, 294.1),
    PaperRow("ar", True, 6.53, None, 1.00, 17791, 153.1, 76.5),
    PaperRow("eagle3", True, 10.08, 7.00, 4.35, 4097, 429.8, 92.7),
    PaperRow("specfit", True, 10.79, 5.09, 4.01, 4407, 370.4, 82.0),
)

TABLE_4 = (  # GSM8K, the 40 odd ids, RTX 4090
    PaperRow("ar", False, 2.67, None, 1.00, 8714, 374.4, 398.6, 1.00),
    PaperRow("eagle3", False, 3.29, 6.99, 4.32, 2009, 1306.7, 346.4, 1.23),
    PaperRow("specfit", False, 3.89, 3.78, 3.68, 2339, 942.8, 288.0, 1.46),
    PaperRow("ar", True, 4.24, None, 1.00, 8714, 236.1, 126.9, 1.59),
    PaperRow("eagle3", True, 6.05, 6.99, 4.32, 2009, 711.1, 150.0, 2.27),
    PaperRow("specfit", True, 6.70, 4.53, 4.00, 2162, 593.7, 128.3, 2.51),
)

# Figure 4: summarization by slots per layer, A100; 0 is the cleared cache.
FIGURE_4_SLOTS = (48, 24, 12, 0)
FIGURE_4 = {
    "decode_tps": {"specfit": (8.27, 7.68, 6.92, 5.54), "eagle3": (6.80, 6.18, 5.36, 4.21)},
    "cycle_ms": {"specfit": (265.8, 286.3, 317.5, 373.6), "eagle3": (371.7, 409.3, 471.8, 600.9)},
    "h2d_per_token": {"specfit": (57.2, 140.4, 227.4, 347.7), "eagle3": (73.4, 200.3, 340.0, 486.5)},
}

# Table 5: recorded pools with the cache; (summarization, GSM8K).
TABLE_5 = {
    "cycles": (4389, 4407),
    "gap_percent": (0.74, 0.95),  # lambda* - Theta, of lambda*
    "bound_percent": (1.38, 1.75),  # Equation 7's, of lambda*
    "different_choice_percent": (26.6, 24.5),  # cycles in which S* is not S^
    "ratio_cv": (0.31, 0.25),  # coefficient of variation of rho
    "recorded_gain_percent": (0.53, 0.69),  # of S* with the recorded acceptances
    "union_per_reward": (365.5, 305.7),  # mean F/R at beta
    "union_per_reward_2_beta": (351.5, 298.0),
    "selected": (2.88, 5.09),  # mean nodes at beta
    "selected_2_beta": (2.35, 4.54),
    "drafted_levels": (2.86, 4.39),
    "stopped_before_5_percent": (85.8, 33.7),
}

# Section 4: (summarization, GSM8K).
SELECTOR_MEDIAN_MS = (1.43, 2.82)
SELECTOR_SHARE_PERCENT = (0.6, 0.7)  # of decode time
DRAFTING_SAVED_PERCENT = (44.9, 11.7)  # drafting time a cycle, by adaptive depth
VERIFICATION_OF_SAVING_PERCENT = 78.3  # of the time saved a cycle, summarization

# Section 4.6: 40 GSM8K questions, speed-up over AR with exact routes and with 60 % of them right.
SPEEDUP_EXACT_ROUTES, SPEEDUP_NOISY_ROUTES, NOISY_ACCURACY = 2.27, 2.26, 0.6
