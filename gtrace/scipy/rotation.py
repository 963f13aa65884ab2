"""Rotations in three dimensions, as quaternions, under the names of ``scipy.spatial.transform``.

Quaternions are (x, y, z, w) of length 1; all methods are differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from gtrace import numpy as gnp
from gtrace import random
from gtrace.extend import ArgumentError, Array, ShapeError, message
from gtrace.numpy import linalg

__all__ = ["Rotation", "Slerp"]

_AXES = "xyz"
_SMALL = 1e-3


def _parts(x: Array) -> list[Array]:
    return [x[..., k] for k in range(x.shape[-1])]


def _float(name: str, x: Any, size: int) -> Array:
    found = gnp.asarray(x)
    found = found if found.aval.floating else found.astype("float32")
    if not found.ndim or found.shape[-1] != size:
        fix = f"Pass shape ({size},) or (n, {size})."
        raise ShapeError(message(name, f"arrays with a last axis of {size}", repr(found.aval), fix))
    return found


def _unit(quat: Array) -> Array:
    return quat / linalg.norm(quat, axis=-1, keepdims=True)


def _product(p: Array, q: Array) -> Array:
    """Return the quaternion of the rotation q, followed by p."""
    a, b, c, d = _parts(p)
    e, f, g, h = _parts(q)
    parts = [
        d * e + h * a + (b * g - c * f),
        d * f + h * b + (c * e - a * g),
        d * g + h * c + (a * f - b * e),
        d * h - a * e - b * f - c * g,
    ]
    return gnp.stack(parts, -1)


def _about(axis: int, angle: Array) -> Array:
    half, none = angle / 2, angle * 0
    parts = [none, none, none, gnp.cos(half)]
    parts[axis] = gnp.sin(half)
    return gnp.stack(parts, -1)


def _sequence(seq: str) -> tuple[list[int], bool]:
    """Return the axes of a sequence of Euler angles, and whether they turn with the body."""
    inner = seq.isupper()
    names = seq.lower()
    if not 1 <= len(seq) <= 3 or any(c not in _AXES for c in names) or not (inner or seq.islower()):
        fix = 'Such as "zyx", or "ZYX" for axes that turn with the body.'
        raise ArgumentError(message("Rotation", "one to three of x, y and z, all large or all small", repr(seq), fix))
    return [_AXES.index(c) for c in names], inner


class Rotation(NamedTuple):
    """One rotation, or several along the first axis.

    Attributes:
        quat: of shape (4,) or (n, 4).

    >>> turn = Rotation.from_euler("z", 90.0, degrees=True)
    >>> gt.round(turn.apply(gt.array([1., 0., 0.])), 4).tolist()
    [0.0, 1.0, 0.0]
    """

    quat: Array

    @classmethod
    def concatenate(cls, rotations: Sequence[Rotation]) -> Rotation:
        """Return several rotations as one object."""
        return cls(gnp.concat([gnp.reshape(r.quat, (-1, 4)) for r in rotations]))

    @classmethod
    def from_quat(cls, quat: Any) -> Rotation:
        """Return the rotation of a quaternion (x, y, z, w), which is brought to length 1."""
        return cls(_unit(_float("Rotation.from_quat", quat, 4)))

    @classmethod
    def from_euler(cls, seq: str, angles: Any, degrees: bool = False) -> Rotation:
        """Return rotations about axes, one after the other.

        Args:
            seq: the axes; large letters for axes that turn with the body.
            angles: one for each axis; of several rotations, along the first axis.
        """
        axes, inner = _sequence(seq)
        given = gnp.asarray(angles)
        given = given if given.aval.floating else given.astype("float32")
        given = gnp.deg2rad(given) if degrees else given
        if len(axes) == 1 and (given.ndim == 0 or given.shape[-1:] != (1,)):
            given = given[..., None]
        given = _float("Rotation.from_euler", given, len(axes))
        quat = _about(axes[0], given[..., 0])
        for k in range(1, len(axes)):
            turn = _about(axes[k], given[..., k])
            quat = _product(quat, turn) if inner else _product(turn, quat)
        return cls(quat)

    @classmethod
    def from_rotvec(cls, rotvec: Any, degrees: bool = False) -> Rotation:
        """Return the rotation about a vector by its length."""
        v = _float("Rotation.from_rotvec", rotvec, 3)
        v = gnp.deg2rad(v) if degrees else v
        square = gnp.sum(v * v, -1, keepdims=True)
        small = square < _SMALL**2
        angle = gnp.sqrt(gnp.where(small, 1.0, square))
        series = 0.5 - square / 48 + square * square / 3840
        scale = gnp.where(small, series, gnp.sin(angle / 2) / angle)
        rest = gnp.where(small, 1 - square / 8 + square * square / 384, gnp.cos(angle / 2))
        return cls(gnp.concat([scale * v, rest], -1))

    @classmethod
    def from_mrp(cls, mrp: Any) -> Rotation:
        """Return the rotation of modified Rodrigues parameters."""
        v = _float("Rotation.from_mrp", mrp, 3)
        square = gnp.sum(v * v, -1, keepdims=True)
        return cls(gnp.concat([2 * v, 1 - square], -1) / (1 + square))

    @classmethod
    def from_matrix(cls, matrix: Any) -> Rotation:
        """Return the rotation of an orthogonal matrix with determinant 1."""
        m = _float("Rotation.from_matrix", matrix, 3)
        if m.ndim < 2 or m.shape[-2] != 3:
            raise ShapeError(message("Rotation.from_matrix", "matrices of 3 by 3", repr(m.aval), "Pass (..., 3, 3)."))
        entry = [[m[..., i, j] for j in range(3)] for i in range(3)]
        trace = entry[0][0] + entry[1][1] + entry[2][2]
        found = []
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            parts = [trace] * 4
            parts[i] = 1 - trace + 2 * entry[i][i]
            parts[j] = entry[j][i] + entry[i][j]
            parts[k] = entry[k][i] + entry[i][k]
            parts[3] = entry[k][j] - entry[j][k]
            found.append(gnp.stack(parts, -1))
        off = [entry[2][1] - entry[1][2], entry[0][2] - entry[2][0], entry[1][0] - entry[0][1], 1 + trace]
        found.append(gnp.stack(off, -1))
        # the largest of the four is the best divisor
        sizes = gnp.stack([entry[0][0], entry[1][1], entry[2][2], trace], -1)
        choice = gnp.argmax(sizes, -1)[..., None]
        quat = found[3]
        for i in range(3):
            quat = gnp.where(choice == i, found[i], quat)
        return cls(_unit(quat))

    @classmethod
    def identity(cls, num: int | None = None, dtype: Any = float) -> Rotation:
        """Return no rotation, or `num` of them."""
        one = gnp.array([0.0, 0.0, 0.0, 1.0], dtype)
        return cls(one if num is None else gnp.broadcast_to(one, (num, 4)))

    @classmethod
    def random(cls, random_key: Any, num: int | None = None) -> Rotation:
        """Return a rotation, or `num` of them, all equally likely."""
        return cls(_unit(random.normal(random_key, (4,) if num is None else (num, 4))))

    @property
    def single(self) -> bool:
        """Whether it is one rotation."""
        return self.quat.ndim == 1

    def __getitem__(self, indexer: Any) -> Any:
        if self.single:
            raise TypeError("a single rotation has no index")
        return Rotation(self.quat[indexer])

    def __len__(self) -> int:
        if self.single:
            raise TypeError("a single rotation has no length")
        return int(self.quat.shape[0])

    def __mul__(self, other: Any) -> Rotation:
        """Return `other`, followed by this rotation."""
        return Rotation(_unit(_product(*gnp.broadcast_arrays(self.quat, other.quat))))

    def inv(self) -> Rotation:
        """Return the rotation back."""
        return Rotation(self.quat * gnp.array([-1.0, -1.0, -1.0, 1.0], self.quat.dtype))

    def apply(self, vectors: Any, inverse: bool = False) -> Array:
        """Return vectors, turned."""
        v = _float("Rotation.apply", vectors, 3)
        matrix = self.inv().as_matrix() if inverse else self.as_matrix()
        return gnp.sum(matrix * v[..., None, :], -1)

    def as_quat(self, canonical: bool = False, scalar_first: bool = False) -> Array:
        """Return the quaternion.

        Args:
            canonical: of the two of a rotation, that whose last part that is not zero is positive.
            scalar_first: as (w, x, y, z).
        """
        quat = self.quat
        if canonical:
            x, y, z, w = _parts(quat)
            lead = gnp.where(w != 0, w, gnp.where(x != 0, x, gnp.where(y != 0, y, z)))
            quat = gnp.where((lead < 0)[..., None], -quat, quat)
        return gnp.roll(quat, 1, -1) if scalar_first else quat

    def as_matrix(self) -> Array:
        """Return the orthogonal matrix."""
        x, y, z, w = _parts(self.quat)
        rows = [
            [x * x - y * y - z * z + w * w, 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), y * y - x * x - z * z + w * w, 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), z * z - x * x - y * y + w * w],
        ]
        return gnp.stack([gnp.stack(row, -1) for row in rows], -2)

    def as_mrp(self) -> Array:
        """Return modified Rodrigues parameters, of length at most 1."""
        sign = gnp.where(self.quat[..., 3:] < 0, -1.0, 1.0).astype(self.quat.dtype)
        return sign * self.quat[..., :3] / (1 + sign * self.quat[..., 3:])

    def as_rotvec(self, degrees: bool = False) -> Array:
        """Return the axis, with the angle as its length."""
        quat = self.as_quat(canonical=True)
        v, w = quat[..., :3], quat[..., 3:]
        square = gnp.sum(v * v, -1, keepdims=True)
        small = square < _SMALL**2
        length = gnp.sqrt(gnp.where(small, 1.0, square))
        # the angle is 2 * atan2(length, w), and near 0 a series in the length
        near = 2 / gnp.where(small, w, 1.0) * (1 - square / (3 * gnp.where(small, w * w, 1.0)))
        angle = gnp.where(small, near, 2 * gnp.arctan2(length, w) / length)
        out = angle * v
        return gnp.rad2deg(out) if degrees else out

    def as_euler(self, seq: str, degrees: bool = False) -> Array:
        """Return the angles of three rotations about axes; where only a sum of two counts, the third is 0.

        Args:
            seq: three axes, as for `from_euler`.
        """
        axes, inner = _sequence(seq)
        if len(axes) != 3 or axes[0] == axes[1] or axes[1] == axes[2]:
            fix = 'Such as "zyx".'
            raise ArgumentError(message("as_euler", "three axes, neighbours of which differ", repr(seq), fix))
        i, j, k = reversed(axes) if inner else axes
        same = i == k
        k = 3 - i - j if same else k
        sign = (i - j) * (j - k) * (k - i) // 2
        parts = _parts(self.quat)
        if same:
            a, b, c, d = parts[3], parts[i], parts[j], parts[k] * sign
        else:
            a, b = parts[3] - parts[j], parts[i] + parts[k] * sign
            c, d = parts[j] + parts[3], parts[k] * sign - parts[i]
        second = 2 * gnp.arctan2(gnp.hypot(c, d), gnp.hypot(a, b))
        tiny = 1e-7
        at_zero, at_pi = gnp.abs(second) <= tiny, gnp.abs(second - numpy.pi) <= tiny
        half_sum, half_difference = gnp.arctan2(b, a), gnp.arctan2(d, c)
        first, third = half_sum - half_difference, half_sum + half_difference
        locked = at_zero | at_pi
        alone = gnp.where(at_zero, 2 * half_sum, 2 * half_difference * (1 if inner else -1))
        if inner:
            first, third = gnp.where(locked, 0.0, first), gnp.where(locked, alone, third)
        else:
            first, third = gnp.where(locked, alone, first), gnp.where(locked, 0.0, third)
        if not same:
            third, second = third * sign, second - numpy.pi / 2
        found = [third, second, first] if inner else [first, second, third]
        out = gnp.stack(found, -1)
        out = gnp.remainder(out + numpy.pi, 2 * numpy.pi) - numpy.pi
        return gnp.rad2deg(out) if degrees else out

    def magnitude(self) -> Array:
        """Return the angle, from 0 to pi."""
        length = linalg.norm(self.quat[..., :3], axis=-1)
        return 2 * gnp.arctan2(length, gnp.abs(self.quat[..., 3]))

    def mean(self, weights: Any = None) -> Rotation:
        """Return the mean of several rotations, that with the least sum of squared distances."""
        quat = gnp.reshape(self.quat, (-1, 4))
        scale = gnp.ones(quat.shape[0], quat.dtype) if weights is None else gnp.asarray(weights, quat.dtype)
        spread = (quat * scale[:, None]).mT @ quat
        return Rotation(linalg.eigh(spread)[1][:, -1])


class Slerp(NamedTuple):
    """Rotations between others, at a constant speed from each to the next.

    Attributes:
        times: increasing.
        timedelta: from each to the next.
        rotations: at all times but the last.
        rotvecs: the turns from each to the next.

    >>> ends = Rotation.from_euler("z", gt.array([0., 90.]), degrees=True)
    >>> round(float(Slerp.init(gt.array([0., 1.]), ends)(0.5).as_euler("zyx", degrees=True)[0]), 3)
    45.0
    """

    times: Array
    timedelta: Array
    rotations: Rotation
    rotvecs: Array

    @classmethod
    def init(cls, times: Any, rotations: Rotation) -> Slerp:
        """Return the path through rotations at times.

        Raises:
            ArgumentError: one rotation, or as many times as there are no rotations.
        """
        if rotations.single or len(rotations) < 2:
            raise ArgumentError(message("Slerp", "at least two rotations", "one", "Pass a sequence of rotations."))
        at = gnp.asarray(times)
        at = at if at.aval.floating else at.astype(rotations.quat.dtype)
        if at.shape != (len(rotations),):
            expected = f"{len(rotations)} times"
            raise ArgumentError(message("Slerp", expected, repr(at.aval), "One for each rotation."))
        before = Rotation(rotations.quat[:-1])
        turns = (before.inv() * Rotation(rotations.quat[1:])).as_rotvec()
        return cls(at, gnp.diff(at), before, turns)

    def __call__(self, times: Any) -> Rotation:
        """Return the rotations at times within the path."""
        at = gnp.asarray(times, self.times.dtype)
        place = gnp.searchsorted(self.times, at, side="right") - 1
        place = gnp.clip(place, 0, self.timedelta.shape[0] - 1)
        share = (at - self.times[place]) / self.timedelta[place]
        return Rotation(self.rotations.quat[place]) * Rotation.from_rotvec(self.rotvecs[place] * share[..., None])
