"""The reward of the arithmetic task, in the form verl's `custom_reward_function.path` takes."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    """1 if the first symbol is the answer, 0.2 if it is another digit, 0 otherwise."""
    first = solution_str.strip()[:1]
    return 1.0 if first == ground_truth else 0.2 if first.isdigit() else 0.0
