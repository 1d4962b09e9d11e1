"""The reward of the arithmetic task, in the form verl's `custom_reward_function.path` takes."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    """1 if the first symbol is the answer, 0.2 less for each digit it is off, 0 if it is no digit."""
    first = solution_str.strip()[:1]
    # Not str.isdigit, which takes digits of other scripts and superscripts, too.
    return max(0.0, 1 - abs(int(first) - int(ground_truth)) / 5) if first and first in "0123456789" else 0.0
