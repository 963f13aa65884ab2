"""Spectra of signals over short stretches of time, under SciPy's names of ``scipy.signal``."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

import numpy

from gtrace.extend import ArgumentError, Array, ShapeError, message, normalize_axis, ops, promote_arrays
from gtrace.numpy import fft
from gtrace.numpy.quantiles import median

__all__ = ["csd", "detrend", "istft", "stft", "welch"]

_WINDOWS: dict[str, Callable[[int], numpy.ndarray]] = {
    "bartlett": numpy.bartlett, "blackman": numpy.blackman, "boxcar": numpy.ones, "hamming": numpy.hamming,
    "hann": numpy.hanning,
}  # fmt: skip


def _named(window: Any) -> bool:
    """Return whether a window is given by its name, alone or with parameters."""
    return isinstance(window, str) or (isinstance(window, tuple) and isinstance(next(iter(window), None), str))


def _numbers(name: str, window: Any) -> numpy.ndarray:
    """Return a window that is given by its elements.

    Raises:
        ArgumentError: it holds something else than real numbers.
    """
    if isinstance(window, Array):
        return numpy.asarray(window, float)
    try:
        return numpy.asarray(window, float)
    except (TypeError, ValueError):
        fix = "A name with parameters is a tuple."
        raise ArgumentError(message(name, "a name or real numbers as window", repr(window), fix)) from None


def _window(name: str, window: Any, size: int) -> numpy.ndarray:
    """Return a window of `size` elements: a periodic one by its name, or the one that is given.

    Raises:
        ArgumentError: no such name; or it needs SciPy, which is not installed.
        ShapeError: an array of another size.
    """
    if _named(window):
        if isinstance(window, str) and window in _WINDOWS:
            return numpy.ones(size) if window == "boxcar" or size == 1 else _WINDOWS[window](size + 1)[:-1]
        if importlib.util.find_spec("scipy") is None:
            known = ", ".join(_WINDOWS)
            fix = "pip install scipy, or pass an array."
            raise ArgumentError(message(name, f"a window among {known} without SciPy", repr(window), fix))
        try:
            return numpy.asarray(importlib.import_module("scipy.signal").get_window(window, size))
        except (TypeError, ValueError) as error:
            raise ArgumentError(message(name, "a window of SciPy's", repr(window), f"SciPy says: {error}")) from None
    found = _numbers(name, window)
    if found.shape != (size,):
        got = f"{found.shape} for nperseg={size}"
        raise ShapeError(message(name, "a window of nperseg elements", got, "Leave nperseg out."))
    return found


def _sizes(name: str, window: Any, nperseg: int | None, noverlap: int | None, nfft: int | None, longest: int) -> Any:
    """Return the lengths of stretches, of what neighbours share, and of transforms.

    Raises:
        ArgumentError: lengths that do not fit each other.
    """
    length = (256 if _named(window) else _numbers(name, window).size) if nperseg is None else int(nperseg)
    length = min(length, longest) if _named(window) else length
    shared = length // 2 if noverlap is None else int(noverlap)
    points = length if nfft is None else int(nfft)
    if length < 1 or not 0 <= shared < length or points < length or length > longest:
        got = f"nperseg={length}, noverlap={shared}, nfft={points} for {longest} elements"
        raise ArgumentError(message(name, "0 <= noverlap < nperseg <= nfft, and nperseg elements", got, "Check them."))
    return length, shared, points


def detrend(data: Any, axis: int = -1, type: str = "linear", bp: Any = 0, overwrite_data: Any = None) -> Array:  # noqa: A002 - SciPy's name
    """Return signals without the line, or the constant, that fits them best.

    Args:
        type: "linear" or "constant".
        bp: places at which another line begins.
        overwrite_data: ignored.

    Raises:
        ArgumentError: another type, or places outside the signal.

    >>> from gtrace.scipy.spectral import detrend
    >>> detrend(gt.array([1., 2., 6.]), type="constant")
    Array([-2., -1.,  3.], dtype=float32)
    """
    (x,) = promote_arrays("detrend", data, floating=True)
    place = normalize_axis("detrend", axis, x.ndim)
    if type == "constant":
        return x - ops.mean(x, place, keepdims=True)
    if type != "linear":
        raise ArgumentError(message("detrend", "linear or constant as type", repr(type), "Pass one of them."))
    size = x.shape[place]
    bounds = numpy.unique([0, *numpy.atleast_1d(bp), size]).tolist()
    if bounds[0] < 0 or bounds[-1] > size:
        raise ArgumentError(message("detrend", f"places from 0 to {size} as bp", repr(bp), "Check bp."))
    # the matrix that leaves what is no line within each stretch
    left = numpy.eye(size)
    for start, stop in itertools.pairwise(bounds):
        line = numpy.stack([numpy.ones(stop - start), numpy.linspace(0, 1, stop - start)], 1)
        left[start:stop, start:stop] -= line @ numpy.linalg.pinv(line)
    return ops.moveaxis(ops.moveaxis(x, place, -1) @ ops.array(left.T, x.aval.dtype), -1, place)


def _extended(name: str, x: Array, kind: str | None, count: int) -> Array:
    """Return signals with `count` more elements at both ends.

    Raises:
        ArgumentError: no such kind, or a signal that is too short.
    """
    if kind is None or not count:
        return x
    if kind not in ("even", "odd", "constant", "zeros"):
        known = "even, odd, constant, zeros or None"
        raise ArgumentError(message(name, f"{known} as boundary", repr(kind), "Pass one of them."))
    if kind in ("even", "odd") and count >= x.shape[-1]:
        got = f"{x.shape[-1]} for {count} on each side"
        raise ArgumentError(message(name, "a signal longer than what is added", got, "Choose a smaller nperseg."))
    first, last = x[..., :1], x[..., -1:]
    if kind == "zeros":
        before = after = ops.zeros((*x.shape[:-1], count), x.aval.dtype, device=x.aval.device)
    elif kind == "constant":
        before, after = (ops.broadcast_to(end, (*x.shape[:-1], count)) for end in (first, last))
    else:
        before, after = ops.flip(x[..., 1 : count + 1], -1), ops.flip(x[..., -count - 1 : -1], -1)
        if kind == "odd":
            before, after = first * 2 - before, last * 2 - after
    return ops.concat([before, x, after], -1)


def _transformed(
    x: Array, window: numpy.ndarray, shared: int, points: int, trend: Any, onesided: bool
) -> tuple[Array, numpy.ndarray]:
    """Return the transforms of all stretches, (..., stretches, frequencies), and where the stretches begin."""
    length = len(window)
    starts = numpy.arange(0, x.shape[-1] - length + 1, length - shared)
    parts = x[..., ops.array(starts[:, None] + numpy.arange(length))]
    if callable(trend):
        parts = trend(parts)
    elif trend:
        parts = detrend(parts, -1, trend)
    parts = parts * ops.array(window, ops.real(parts).aval.dtype)
    return (fft.rfft if onesided else fft.fft)(parts, points), starts


def _signal(name: str, x: Any, axis: int) -> Array:
    (out,) = promote_arrays(name, x, floating=True)
    if not out.ndim or not out.size:
        raise ShapeError(message(name, "signals with at least one element", repr(out.aval), "Check the shape."))
    return ops.moveaxis(out, normalize_axis(name, axis, out.ndim), -1)


def _frequencies(points: int, fs: float, onesided: bool, like: Array) -> Array:
    found = (numpy.fft.rfftfreq if onesided else numpy.fft.fftfreq)(points, 1 / fs)
    return ops.array(found, ops.real(like).aval.dtype)


def stft(
    x: Any, fs: float = 1.0, window: Any = "hann", nperseg: int | None = 256, noverlap: int | None = None,
    nfft: int | None = None, detrend: Any = False, return_onesided: bool = True, boundary: str | None = "zeros",
    padded: bool = True, axis: int = -1,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return the Fourier transforms of overlapping stretches of signals.

    Args:
        x: array of signals along `axis`.
        fs: elements in a unit of time.
        window: "hann", "hamming", "blackman", "bartlett", "boxcar", an array of nperseg elements, or another name of
            ``scipy.signal.get_window``, alone or in a tuple with its parameters, if SciPy is installed.
        nperseg: elements of a stretch; at most those of the signal.
        noverlap: how many of them neighbours share; None: half.
        nfft: elements of the transforms; the rest is zeros.
        detrend: what to take off each stretch: "constant", "linear", a function, or False.
        return_onesided: of real signals, only the frequencies from 0 on.
        boundary: the values added at both ends: "zeros", "even", "odd", "constant", or None.
        padded: add zeros at the end, so that the last stretch is full.

    Returns:
        The frequencies, the times of the middles of stretches, and the transforms: frequencies on `axis`, times last.

    Raises:
        ArgumentError, ShapeError: lengths that do not fit.

    >>> from gtrace.scipy.spectral import stft
    >>> f, t, z = stft(gt.ones(8), nperseg=4)
    >>> f.tolist(), t.tolist(), z.shape
    ([0.0, 0.25, 0.5], [0.0, 2.0, 4.0, 6.0, 8.0], (3, 5))
    """
    signal = _signal("stft", x, axis)
    length, shared, points = _sizes("stft", window, nperseg, noverlap, nfft, signal.shape[-1])
    weights = _window("stft", window, length)
    signal = _extended("stft", signal, boundary, length // 2)
    if padded:
        missing = -(signal.shape[-1] - length) % (length - shared) % length
        filled = ops.zeros((*signal.shape[:-1], missing), signal.aval.dtype, device=signal.aval.device)
        signal = ops.concat([signal, filled], -1)
    onesided = bool(return_onesided) and not signal.aval.complex
    out, starts = _transformed(signal, weights, shared, points, detrend, onesided)
    times = (starts + length / 2 - (length / 2 if boundary is not None else 0)) / fs
    place = normalize_axis("stft", axis, signal.ndim)
    return (
        _frequencies(points, fs, onesided, signal),
        ops.array(times, ops.real(signal).aval.dtype),
        ops.moveaxis(ops.moveaxis(ops.divide(out, float(abs(weights.sum()))), -1, -2), -2, place),
    )


def csd(
    x: Any, y: Any, fs: float = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
    nfft: int | None = None, detrend: Any = "constant", return_onesided: bool = True, scaling: str = "density",
    axis: int = -1, average: str = "mean",
) -> tuple[Array, Array]:  # fmt: skip
    """Return the cross spectral density of two signals by Welch's method; see `stft` for the arguments.

    Args:
        y: None: x itself.
        scaling: "density", for a unit of frequency, or "spectrum".
        average: of stretches: "mean" or "median".

    Returns:
        The frequencies, and the density, complex unless both signals are one.

    Raises:
        ArgumentError: another scaling or average.

    >>> from gtrace.scipy.spectral import csd
    >>> gt.round(csd(gt.array([1., -1., 1., -1.]), None, nperseg=4)[1], 3)
    Array([0.   , 1.333, 2.667], dtype=float32)
    """
    if scaling not in ("density", "spectrum") or average not in ("mean", "median"):
        got = f"scaling={scaling!r} and average={average!r}"
        raise ArgumentError(message("csd", "density or spectrum, and mean or median", got, "Pass one of them."))
    alone = y is None or y is x
    first = _signal("csd", x, axis)
    second = first if alone else _signal("csd", y, axis)
    longest = max(first.shape[-1], second.shape[-1])
    outer = ops.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    length, shared, points = _sizes("csd", window, nperseg, noverlap, nfft, longest)
    weights = _window("csd", window, length)
    onesided = bool(return_onesided) and not first.aval.complex and not second.aval.complex

    def spectrum(signal: Array) -> Array:
        filled = ops.zeros(
            (*signal.shape[:-1], longest - signal.shape[-1]), signal.aval.dtype, device=signal.aval.device
        )
        return _transformed(ops.concat([signal, filled], -1), weights, shared, points, detrend, onesided)[0]

    of_first = spectrum(first)
    product = ops.conj(of_first) * (of_first if alone else spectrum(second))
    scale = 1 / (fs * (weights**2).sum()) if scaling == "density" else 1 / weights.sum() ** 2
    factors = numpy.full(product.shape[-1], scale)
    if onesided:
        factors[1 : None if points % 2 else -1] *= 2  # what negative frequencies would have
    out = product * ops.array(factors, ops.real(product).aval.dtype)
    if average == "mean":
        out = ops.mean(out, -2)
    else:
        even = 2.0 * numpy.arange(1, (out.shape[-2] - 1) // 2 + 1)
        bias = float(1 + (1 / (even + 1) - 1 / even).sum())
        out = ops.complex(median(ops.real(out), -2), median(ops.imag(out), -2)) / bias
    out = ops.broadcast_to(ops.real(out) if alone else out, (*outer, out.shape[-1]))
    return _frequencies(points, fs, onesided, first), ops.moveaxis(out, -1, normalize_axis("csd", axis, out.ndim))


def welch(
    x: Any, fs: float = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,
    nfft: int | None = None, detrend: Any = "constant", return_onesided: bool = True, scaling: str = "density",
    axis: int = -1, average: str = "mean",
) -> tuple[Array, Array]:  # fmt: skip
    """Return the power spectral density of signals by Welch's method: `csd` of a signal and itself.

    >>> from gtrace.scipy.spectral import welch
    >>> gt.round(welch(gt.array([1., -1., 1., -1.]), nperseg=4)[1], 3)
    Array([0.   , 1.333, 2.667], dtype=float32)
    """
    return csd(x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average)


def istft(
    Zxx: Any, fs: float = 1.0, window: Any = "hann", nperseg: int | None = None, noverlap: int | None = None,  # noqa: N803 - SciPy's name
    nfft: int | None = None, input_onesided: bool = True, boundary: bool = True, time_axis: int = -1,
    freq_axis: int = -2,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the signals whose `stft` gives these transforms.

    Args:
        Zxx: array with frequencies on `freq_axis` and times on `time_axis`.
        nperseg: by default, as many as the frequencies tell.
        boundary: whether `stft` extended the signals.

    Returns:
        The times of the elements, and the signals, with them on `time_axis` of what is left without frequencies.

    Raises:
        ArgumentError: lengths that do not fit.

    >>> from gtrace.scipy.spectral import istft, stft
    >>> gt.round(istft(stft(gt.array([1., 2., 3., 4.]), nperseg=4)[2])[1], 3)
    Array([1., 2., 3., 4.], dtype=float32)
    """
    (z,) = promote_arrays("istft", Zxx, floating=True)
    of_time, of_frequency = (normalize_axis("istft", k, z.ndim) for k in (time_axis, freq_axis))
    z = ops.moveaxis(z, (of_time, of_frequency), (-2, -1))
    rows = 2 * (z.shape[-1] - 1) if input_onesided else z.shape[-1]
    length = rows if nperseg is None else int(nperseg)
    # an odd length has as many frequencies as the even one below it
    points = (length if input_onesided and length == rows + 1 else rows) if nfft is None else int(nfft)
    length, shared, points = _sizes("istft", numpy.empty(length), length, noverlap, points, max(length, points))
    weights = _window("istft", window, length)
    parts = (fft.irfft if input_onesided else fft.ifft)(z, points)[..., :length]
    kind = ops.real(parts).aval.dtype
    parts = parts * ops.array(weights * weights.sum(), kind)
    step, count = length - shared, parts.shape[-2]
    places = numpy.arange(count)[:, None] * step + numpy.arange(length)
    total = length + (count - 1) * step
    norm = numpy.zeros(total)
    numpy.add.at(norm, places, numpy.broadcast_to(weights**2, places.shape))
    out = ops.zeros((*parts.shape[:-2], total), parts.aval.dtype, device=parts.aval.device)
    out = out.at[..., ops.array(places)].add(parts)
    out = out / ops.array(numpy.where(norm > 1e-10, norm, 1.0), kind)
    if boundary:
        out = out[..., length // 2 : total - length // 2]
    times = ops.array(numpy.arange(out.shape[-1]) / fs, kind)
    return times, ops.moveaxis(out, -1, of_time - (of_frequency < of_time))
