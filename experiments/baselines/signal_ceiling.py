"""SignalCeiling: the best that can be had from signals known before drafting, by a predictor trained offline."""

from __future__ import annotations

import numpy as np

from adaptive_spec.cost.base import StepCost
from adaptive_spec.experiments.baselines.causal_features import causal_features
from adaptive_spec.experiments.baselines.hindsight import Hindsight, Present
from adaptive_spec.policy import Allocation, SurvivalEstimate
from adaptive_spec.replay.trace import Trace
from adaptive_spec.step import FloatArray, StepView

FLOOR = 1e-6  # no survival is smaller


class SignalCeiling(Hindsight):
    """Splits each step's budget exactly, on the survival that gradient boosting predicts from every causal feature.

    What separates it from the clairvoyant is what can't be known before drafting; what separates an online
    policy from it is what that policy hasn't learned, or doesn't look at. It is no bound in the strict
    sense: a better predictor may exist.

    Parameters
    ----------
    survival : float array, shape (positions, K)
        Predicted for every position of the trace that is served, by :func:`predict_survival`.
    present_places : callable
        Places in the trace's flat arrays of each sequence of the step that is being decided, in the view's
        order, shape (B,).
    """

    def __init__(self, survival: FloatArray, present_places: Present) -> None:
        self.survival = survival
        self.present_places = present_places

    def reset(self, max_depth: int, seed: int) -> None:
        """Take K; ValueError if the predictions aren't for it."""
        if self.survival.ndim != 2 or self.survival.shape[1] != max_depth:
            raise ValueError(
                f"survival has shape {self.survival.shape}; it must have a row for each position of the trace, and "
                f"{max_depth} columns, one for each draft"
            )
        super().reset(max_depth, seed)

    def _decide(self, view: StepView, acceptance: SurvivalEstimate, cost: StepCost | None) -> Allocation:
        places = self.present_places()
        if places.shape != view.row.shape:
            raise ValueError(f"present_places told of {places.shape} sequences; the step has {view.row.shape}")
        return self._split(self.survival[places], view, cost)


def predict_survival(training: Trace, served: Trace, max_depth: int, seed: int = 0) -> FloatArray:
    """Train on some texts and predict the survival of the drafts of others.

    One scikit-learn ``HistGradientBoostingClassifier`` predicts whether draft k is accepted if all before
    it are, from :func:`causal_features` and k; the survival is the running product over k.

    Parameters
    ----------
    training, served : Trace
        Halves of one trace, split by text.
    max_depth : int
        K.
    seed : int
        Of the classifier.

    Returns
    -------
    float array, shape (served.positions, K)
        Never rises along k.

    Raises
    ------
    ValueError
        If a text is in both, or the training half has no draft.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    both = np.intersect1d(training.text, served.text)
    if len(both):
        raise ValueError(
            f"text {both[0]} is in both halves; split a trace by text, and concatenate traces before they are split"
        )
    known = np.concatenate([causal_features(sequence) for sequence in training])
    asked: list[FloatArray] = []
    label: list[FloatArray] = []
    for k in range(max_depth):
        reached = (training.offered > k) & (training.run >= k)
        asked.append(_with_position(known[reached], k))
        label.append((training.run[reached] > k).astype(np.float64))
    labels = np.concatenate(label)
    if not len(labels):
        raise ValueError("the training half has no draft; there is nothing to learn from")
    features = np.concatenate([causal_features(sequence) for sequence in served])
    if labels.min() == labels.max():  # one outcome only: nothing tells drafts apart
        conditional = np.full((len(features), max_depth), labels[0])
    else:
        model = HistGradientBoostingClassifier(
            learning_rate=0.06, max_iter=200, max_leaf_nodes=15, min_samples_leaf=20, l2_regularization=1.0,
            early_stopping=False, random_state=seed,
        )  # fmt: skip
        with threadpool_limits(1):  # the same sums on every machine, and threads only get in each other's way here
            model.fit(np.concatenate(asked), labels)
            chances = [model.predict_proba(_with_position(features, k))[:, 1] for k in range(max_depth)]
        conditional = np.column_stack(chances)
    return np.maximum(np.cumprod(conditional, axis=1), FLOOR)


def _with_position(features: FloatArray, k: int) -> FloatArray:
    return np.column_stack((features, np.full(len(features), float(k))))
