"""The acceptance model's arithmetic for a batch of one sequence, in plain floats: a third of numpy's time.

Eight positions are too few for numpy, whose calls cost a microsecond each whatever they work on. Equal to the
array versions within rounding (a test holds it); what they mean stands there.
"""

from __future__ import annotations

import math

import numpy as np

from adaptive_spec.population import LOGIT_LIMIT, PopulationLevel
from adaptive_spec.sequence_effect import NODE, OFFSET_LIMIT, SHARE_LEAST, SequenceEffect
from adaptive_spec.step import FloatArray

SIXTH = 1.0 / 6.0


def survival_of_one(odds_against: list[float], offset: float | None, sd: float, floor: float) -> FloatArray:
    """Survival of one sequence, shape (K, 1), from exp(-beta) of each position; see ``Survival.mean``."""
    survival = []
    if offset is None:
        product = 1.0
        for odds in odds_against:
            product /= 1.0 + odds
            survival.append(product if product > floor else floor)
    else:
        middle, up = math.exp(-offset), math.exp(NODE * sd)
        low, high = middle * up, middle / up
        a = b = c = 1.0
        for odds in odds_against:
            a /= 1.0 + odds * low
            b /= 1.0 + odds * middle
            c /= 1.0 + odds * high
            mean = (4.0 * b + a + c) * SIXTH
            survival.append(mean if mean > floor else floor)
    return np.array(survival).reshape(-1, 1)


def observe_one(
    population: PopulationLevel, effect: SequenceEffect | None, row: int, cell: int, judged: int, kept: int
) -> None:
    """Learn from one sequence's step, of which `judged` >= 1 drafts were judged; see ``AcceptanceModel.observe``."""
    odds: list[float] = [population.odds_against.item(k, cell) for k in range(judged)]
    if effect is None:
        averages = [1.0 / (1.0 + x) for x in odds]
        share = 1.0
    else:
        mean, precision = effect.relax_one(row)
        against = math.exp(-mean)
        expected = [1.0 / (1.0 + x * against) for x in odds]
        gradient = kept - sum(expected)
        information = sum(q - q * q for q in expected)
        laplace = information + precision
        offset = gradient / laplace + mean
        middle, up = math.exp(-offset), math.exp(NODE / math.sqrt(laplace))
        low, high = middle * up, middle / up
        averages = []
        squares = 0.0
        for x in odds:
            a, b, c = 1.0 / (1.0 + x * low), 1.0 / (1.0 + x * middle), 1.0 / (1.0 + x * high)
            averages.append((4.0 * b + a + c) * SIXTH)
            squares += (4.0 * b * b + a * a + c * c) * SIXTH
        average_sum: float = sum(averages)
        posterior = precision + average_sum - squares
        corrected = (kept - average_sum - (offset - mean) * precision) / posterior + offset
        corrected = min(max(corrected, -OFFSET_LIMIT), OFFSET_LIMIT)
        effect.offset[row] = corrected
        effect.precision[row] = posterior
        share = SHARE_LEAST + (1.0 - SHARE_LEAST) / (posterior * effect.sigma2)
        effect.learn_variance_of_one(row, gradient + information * mean, information)
    population.step += 1
    for k, average in enumerate(averages):
        _newton(population, k, cell, (k < kept) - average, share * (average - average * average))
    population.sweep_if_due()


def _newton(population: PopulationLevel, k: int, cell: int, gradient: float, information: float) -> None:
    halfway = 1.0 / (1.0 + population.odds_against.item(k, cell)) + 0.5 * gradient
    curvature = population.curvature.item(k, cell)
    braking = max(information, halfway - halfway * halfway) + curvature + population.anchor_curvature
    beta = population.beta.item(k, cell) + gradient / braking
    beta = min(max(beta, -LOGIT_LIMIT), LOGIT_LIMIT)
    population.beta[k, cell] = beta
    population.odds_against[k, cell] = math.exp(-beta)
    population.curvature[k, cell] = curvature + information
    population.seen[k, cell] = population.step
