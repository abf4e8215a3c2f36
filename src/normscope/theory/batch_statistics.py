"""The law of batch mean and batch deviation: their moments over randomly drawn batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln

from normscope.checks import checked_numbers
from normscope.errors import InputError
from normscope.refs import LUO2019, NORMSCOPE, equation

Number = Any  # a float for a float, an array for an array
PRIOR = "Sec. 2, prior of mu_B and sigma_B"
SERIES_FROM = 16.0  # the first term left out is below 1e-15 there
HALF_STEP = ((1, -1 / 8), (3, 1 / 192), (5, -1 / 640), (7, 17 / 14336), (9, -31 / 18432))


def checked_batch_size(batch_size: ArrayLike, *, above: float = 1, what: str = "") -> Number:
    """Batch sizes as floats; those too small for the moment are an error that says so."""
    sizes = checked_numbers(batch_size, "batch_size")
    if np.any(sizes <= above):
        reason = what or "one sample has no deviation"
        raise InputError(
            f"The batch size must be above {above:g}: {reason}. Got {batch_size!r}. Use larger "
            "batches."
        )
    return sizes[()]


def checked_law(std: ArrayLike = 1.0, excess_kurtosis: ArrayLike = 0.0) -> tuple[Number, Number]:
    """Deviation and excess kurtosis that some law has."""
    sigma = checked_numbers(std, "std")[()]
    rho = checked_numbers(excess_kurtosis, "excess_kurtosis")[()]
    if np.any(sigma < 0):
        raise InputError(f"A standard deviation is not negative. Got {std!r}.")
    if np.any(rho < -2 - 1e-9):
        raise InputError(
            f"The excess kurtosis E[n^4] - 3 of any law is at least -2. Got {excess_kurtosis!r}."
        )
    return sigma, rho


@equation(LUO2019, PRIOR)
def mean_variance(batch_size: ArrayLike, *, std: ArrayLike = 1.0) -> Number:
    r"""Variance of the batch mean.

    .. math:: \mathrm{Var}(\mu_B) = \sigma_P^2 / M

    Symbols: M ``batch_size``; sigma_P ``std`` of the population.
    Holds for: independent samples, one value each; exact.
    """
    sigma, _ = checked_law(std)
    return sigma**2 / checked_batch_size(batch_size, above=0, what="there must be a sample")


@equation(NORMSCOPE, "docs/design/0004, Law of the batch statistics")
@equation(LUO2019, PRIOR)
def deviation_mean(
    batch_size: ArrayLike,
    *,
    std: ArrayLike = 1.0,
    excess_kurtosis: ArrayLike = 0.0,
    centered: bool = True,
) -> Number:
    r"""Mean of the batch deviation, whose variance divides by M.

    .. math:: E[\sigma_B] = \sigma_P\left[1 - \frac{1}{2M} - \frac{\rho+2}{8M}\right] + O(M^{-2})

    Symbols: M ``batch_size``; sigma_P ``std``; rho ``excess_kurtosis`` E[n^4] - 3; not
    ``centered``: sigma_B^2 is the mean square of values of mean zero, and 1/(2M) is absent.
    Holds for: a finite fourth moment; neglects O(M^-2).
    Differs from the paper: it sets the bias to zero.
    """
    m = checked_batch_size(batch_size)
    sigma, rho = checked_law(std, excess_kurtosis)
    return sigma * (1 - float(centered) / (2 * m) - (rho + 2) / (8 * m))


@equation(LUO2019, PRIOR)
def deviation_variance(
    batch_size: ArrayLike, *, std: ArrayLike = 1.0, excess_kurtosis: ArrayLike = 0.0
) -> Number:
    r"""Variance of the batch deviation.

    .. math:: \mathrm{Var}(\sigma_B) = \sigma_P^2\,\frac{\rho+2}{4M} + O(M^{-2})

    Symbols: M ``batch_size``; sigma_P ``std``; rho ``excess_kurtosis``, 0 for a Gaussian.
    Holds for: a finite fourth moment, centred or not; neglects O(M^-2).
    Differs from the paper: sigma_P^2 is lost there, and its "kurtosis" is the excess kurtosis.
    """
    m = checked_batch_size(batch_size)
    sigma, rho = checked_law(std, excess_kurtosis)
    return sigma**2 * (rho + 2) / (4 * m)


@equation(NORMSCOPE, "docs/design/0004, Law of the batch statistics")
def mean_deviation_covariance(
    batch_size: ArrayLike, *, std: ArrayLike = 1.0, skewness: ArrayLike = 0.0
) -> Number:
    r"""Covariance of batch mean and batch deviation.

    .. math:: \mathrm{Cov}(\mu_B, \sigma_B) = \sigma_P^2\,\frac{s}{2M} + O(M^{-2})

    Symbols: M ``batch_size``; sigma_P ``std``; s ``skewness`` E[n^3].
    Holds for: a finite third moment; neglects O(M^-2).
    Differs from the paper: it sets the covariance to zero.
    """
    sigma, _ = checked_law(std)
    return (
        sigma**2 * checked_numbers(skewness, "skewness")[()] / (2 * checked_batch_size(batch_size))
    )


def _freedom(batch_size: ArrayLike, *, centered: bool, needed: int, what: str) -> Number:
    """M and nu; the moment exists for nu > ``needed``."""
    above = needed + float(centered)
    reason = f"{what} of a Gaussian batch does not exist below"
    m = checked_batch_size(batch_size, above=above, what=reason)
    return m, m - float(centered)


def log_deviation_mean(batch_size: ArrayLike, *, centered: bool) -> Number:
    """Logarithm of E[sigma_B], Gaussian: gaps are its distance from 0, lost in E[sigma_B] - 1."""
    m, nu = _freedom(batch_size, centered=centered, needed=0, what="E[sigma_B]")
    return 0.5 * np.log1p(-float(centered) / m) + _log_half_step(nu / 2)


def log_inverse_deviation_mean(batch_size: ArrayLike, *, centered: bool) -> Number:
    """Logarithm of E[1/sigma_B], Gaussian."""
    _, nu = _freedom(batch_size, centered=centered, needed=1, what="E[1/sigma_B]")
    return 0.5 * np.log1p((1 + float(centered)) / (nu - 1)) - _log_half_step((nu - 1) / 2)


def _log_half_step(x: Number) -> Number:
    """Logarithm of Gamma(x + 1/2) / (Gamma(x) sqrt(x)); by a series where logs would cancel."""
    large = np.maximum(x, SERIES_FROM)
    series = sum(c / large**k for k, c in HALF_STEP)
    small = np.minimum(x, SERIES_FROM)
    direct = gammaln(small + 0.5) - gammaln(small) - 0.5 * np.log(small)
    return np.where(x > SERIES_FROM, series, direct)[()]


@equation(NORMSCOPE, "docs/design/0004, Law of the batch statistics")
def gaussian_deviation_mean(batch_size: ArrayLike, *, centered: bool = True) -> Number:
    r"""Mean batch deviation of standard Gaussian values, exact.

    .. math:: E[\sigma_B] = \sqrt{\frac{2}{M}}\,\frac{\Gamma((\nu+1)/2)}{\Gamma(\nu/2)}

    Symbols: M ``batch_size``; nu = M - 1 if ``centered``, else M.
    Holds for: nu > 0; exact.
    """
    return np.exp(log_deviation_mean(batch_size, centered=centered))


@equation(LUO2019, "App. C.3, E[1/sigma_B]")
def gaussian_inverse_deviation_mean(batch_size: ArrayLike, *, centered: bool = True) -> Number:
    r"""Mean inverse batch deviation of standard Gaussian values, exact.

    .. math:: E[1/\sigma_B] = \sqrt{\frac{M}{2}}\,\frac{\Gamma((\nu-1)/2)}{\Gamma(\nu/2)}

    Symbols: M ``batch_size``; nu = M - 1 if ``centered``, else M.
    Holds for: nu > 1; exact. At nu = 1 the mean is infinite.
    """
    return np.exp(log_inverse_deviation_mean(batch_size, centered=centered))


@equation(LUO2019, "App. C.3, E[1/sigma_B^2]")
def gaussian_inverse_variance_mean(batch_size: ArrayLike, *, centered: bool = True) -> Number:
    r"""Mean inverse batch variance of standard Gaussian values, exact.

    .. math:: E[1/\sigma_B^2] = \frac{M}{\nu - 2}

    Symbols: M ``batch_size``; nu = M - 1 if ``centered``, else M.
    Holds for: nu > 2; exact. At nu = 2 the mean is infinite.
    """
    m, nu = _freedom(batch_size, centered=centered, needed=2, what="E[1/sigma_B^2]")
    return m / (nu - 2)


@equation(NORMSCOPE, "docs/design/0004, Correlated positions")
def correlated_mean_variance(
    batch_size: ArrayLike, *, positions: int, common: float, std: ArrayLike = 1.0
) -> Number:
    r"""Variance of the batch mean over images whose positions share part of their variance.

    .. math:: \mathrm{Var}(\mu_B) = \frac{\sigma_P^2}{M}\left(c + \frac{1-c}{K}\right)

    Symbols: M ``batch_size``, images; K ``positions`` of an image; c ``common``, the share of the
    variance that is common to an image; sigma_P ``std`` over all values.
    Holds for: positions that are independent given their image; exact.
    Differs from the paper: it has no convolutions; 1/(M K) is the case c = 0, 1/M the case c = 1.
    """
    if not (positions >= 1 and 0 <= common <= 1):
        raise InputError(
            f"An image has at least one position and shares a part of its variance from 0 to 1. "
            f"Got positions={positions!r}, common={common!r}."
        )
    return mean_variance(batch_size, std=std) * (common + (1 - common) / positions)


@equation(NORMSCOPE, "docs/design/0004, Correlated positions")
def effective_batch_size(mean_variance: ArrayLike, *, std: ArrayLike = 1.0) -> Number:
    r"""Number of independent values whose mean would vary as much.

    .. math:: M_{\mathrm{eff}} = \sigma_P^2 / \mathrm{Var}(\mu_B)

    Symbols: Var(mu_B) ``mean_variance``, measured over batches; sigma_P ``std``.
    Holds for: any law with a variance; a definition.
    """
    variance = checked_numbers(mean_variance, "mean_variance")
    sigma, _ = checked_law(std)
    if np.any(variance < 0):
        raise InputError(f"A variance is not negative. Got {mean_variance!r}.")
    with np.errstate(divide="ignore"):
        return (sigma**2 / variance)[()]
