"""Training runs: the one loop (`loop`), the files it leaves behind (`session`, `directory`, `checkpoint`)
and the progress it shows. May import the packages left of it: diagnose, algorithms, rollout,
envs, numerics and the top-level modules; never agent, report, experiments or cli.
"""
