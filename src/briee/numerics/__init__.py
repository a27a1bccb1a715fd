"""Pure kernels: linear algebra, L-BFGS, key streams, quick compilation, searches of pytrees. They know no
environment and no algorithm, and import JAX and Equinox but nothing of this package.
"""
