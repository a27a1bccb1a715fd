"""Quick compilation: the same numbers, compiled once, also if the compiler does not know the options."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from briee import compute
from briee.compute import known_options, quick_jit


@pytest.fixture(autouse=True)
def forget():
    yield
    known_options.cache_clear()


def test_numbers_are_those_of_the_function_itself():
    function = quick_jit(lambda x, power: jnp.cumsum(x**power))
    np.testing.assert_array_equal(function(jnp.arange(5), 2), np.cumsum(np.arange(5) ** 2))


def test_threads_share_one_compilation():
    traced = []
    function = quick_jit(lambda x: traced.append(0) or x + 1)
    with ThreadPoolExecutor(4) as pool:
        assert [int(y) for y in pool.map(function, [jnp.int32(i) for i in range(8)])] == list(range(1, 9))
    assert len(traced) == 1


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="options are for CPUs")
def test_options_that_the_compiler_does_not_know_are_left_out(monkeypatch):
    assert known_options() == compute.OPTIONS
    known_options.cache_clear()
    monkeypatch.setattr(compute, "OPTIONS", {"xla_no_such_option": True})
    assert known_options() == {}
    assert int(quick_jit(lambda x: x + 1)(jnp.int32(1))) == 2


def test_inside_a_traced_function_it_is_the_function_itself():
    zeros, double = quick_jit(lambda n: jnp.zeros(n)), quick_jit(lambda x: 2 * x)
    assert jax.eval_shape(lambda x: zeros(3) + double(x), 1.0).shape == (3,)
    np.testing.assert_array_equal(jax.jit(lambda x: zeros(3) + double(x))(1.0), np.full(3, 2.0))
    np.testing.assert_array_equal(zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match="refused"):
        quick_jit(_refuse)(1)


def _refuse(x):
    raise ValueError("refused")
